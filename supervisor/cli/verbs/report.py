"""`guardctl report`: one page for a whole run, from what its directory holds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from guardrun.hooks.wire.board import Milestone
from guardrun.supervisor.cli.base.verb import (
    OK,
    Call,
    CtlError,
    Verb,
    add_run_argument,
    is_alive,
    named_run,
    read_run,
    this_node,
    whose_else,
    write_page,
)
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.run_summary import attempt_record, summary
from guardrun.supervisor.engine.state.state import State
from guardrun.supervisor.report import save_interval
from guardrun.supervisor.report.elements.quantities import iso_time, parse_iso_time
from guardrun.supervisor.report.run_page import USES, run_html
from guardrun.supervisor.report.run_record import read_incidents, read_json, short_incident
from guardrun.supervisor.report.timeline.step_plot import step_times, thin
from guardrun.supervisor.report.timeline.story import RunIncident, Story, run_story
from guardrun.supervisor.report.timeline.timeline import TRAINING, Timeline
from guardrun.supervisor.rundir.journal import describe_versions, recover
from guardrun.supervisor.rundir.run_directory import RunFile

UNSEEN = (
    "stragglers: ranks wait for each other on devices, where nothing is seen of it; [slowdown] device_timing = true "
    "times most of it (docs/accelerators.md)"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--output", metavar="FILE", help="where to write the page (default: RUN/report.html)")


def _run(call: Call) -> int:
    run_dir = named_run(call)
    node = this_node(call.environ)
    data, story = read_story(run_dir, read_run(run_dir), node)
    output = call.arguments.output
    path = call.cwd / output if output else run_dir / "report.html"
    if not output and not call.out.is_json and (whose := whose_else(run_dir)):
        raise CtlError(f"{run_dir} is {whose}'s: root writes nothing there; say where with --output FILE")
    if output or not call.out.is_json:
        write_page(path, lambda: run_html(_with_links(data, path.parent), story))
    if call.out.is_json:
        call.out.json({**data, "page": str(path) if output else None})
    else:
        call.out.line(str(path))
    return OK


def _with_links(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Incidents with the way from the page's folder to their own pages."""
    incidents = []
    for record in data["incidents"]:
        page = Path(str(record["folder"])) / "report.html"
        incidents.append({**record, "page": os.path.relpath(page, folder) if page.is_file() else ""})
    return {**data, "incidents": incidents}


def read_story(run_dir: Path, run: RunFile, node: str) -> tuple[dict[str, Any], Story | None]:
    """What is known of a run, as plain data and as what is drawn. A journal that is torn or gone is no error."""
    timeline, saves = Timeline(is_whole_run=True), save_interval.Saves()
    troubles: list[str] = []
    state = State()

    def feed(event: ev.Event, now_s: float) -> None:
        timeline.feed(event, now_s)
        saves.feed(event, now_s)

    try:
        engine, result = recover(run_dir, feed, with_rotated=True, watch_others=True)
    except OSError as error:
        troubles.append(f"the journal can't be read: {error.strerror or error}")
    else:
        state = engine.state
        if result.set_aside:
            troubles.append(f"{result.set_aside} lines of the journal are torn, or were set aside")
        if result.left_out:
            kept = "what guardrun decided is told by summary.json and the incidents alone"
            said = f"{describe_versions(result.other_version)}: {result.left_out} lines are not replayed"
            troubles.append(f"{said}, and {kept}")
        if result.mismatches:
            troubles.append(f"{len(result.mismatches)} events mean nothing to this version of guardrun")
    if state.attempt and any(rank.milestones & Milestone.WAITS_UNSEEN for rank in state.attempt.ranks.values()):
        troubles.append(UNSEEN)
    if timeline.trouble:
        troubles.append(f"the timeline is not whole: {timeline.trouble}")
    incidents = [short_incident(record) for record in read_incidents(run_dir)]
    if len(incidents) < len(state.incidents):
        troubles.append(f"{len(state.incidents) - len(incidents)} incidents of the journal have no incident.json")
    data = _data(run_dir, run, state, timeline, node)
    uses_s = data["uses_s"]
    stepping_s = uses_s.get("training", 0.0) + uses_s.get("redoing", 0.0)
    terms = save_interval.Terms(data["restarts"], stepping_s, uses_s.get("redoing", 0.0))
    found = save_interval.judge(saves, terms)
    data |= {"incidents": incidents, "troubles": troubles, "save_interval": msgspec.to_builtins(found)}
    signs = _signs(incidents, run.created_wall_s)
    story = run_story(timeline, signs) if timeline.last_s > 0 else None
    data["steps"] = [list(point) for point in thin(step_times(story.front))] if story else []
    gauges = story.gauges if story else {}
    data["metrics"] = {name: points for (subject, name), points in gauges.items() if subject == TRAINING}
    return data, story


def _data(run_dir: Path, run: RunFile, state: State, timeline: Timeline, node: str) -> dict[str, Any]:
    found = read_json(run_dir / "summary.json")
    told: dict[str, Any] = found or msgspec.to_builtins(summary(state, timeline.last_s), str_keys=True)
    alive = is_alive(run, node)
    attempts = [attempt for attempt in told.get("attempts") or [] if isinstance(attempt, dict)]
    if found is None and state.attempt is not None and len(attempts) <= state.attempt.number:
        # It goes on, or nobody was left to see how it ended.
        attempts.append({**attempt_record(state.attempt), "ended_s": round(timeline.last_s, 3), "outcome": ""})
    lost_s = {use: _number(seconds) for use, seconds in (told.get("lost_s") or {}).items()}
    wall_s = _number(told.get("wall_s"))
    uses_s = {"training": max(wall_s - sum(lost_s.values()), 0.0), **lost_s}
    return {
        "run_id": run.run_id,
        "run_dir": str(run_dir),
        "node": run.node,
        "nodes": _nodes(state),
        "command": run.command,
        "world_size": state.world_size or None,
        "is_alive": bool(alive) and found is None,
        "state": "ended" if found else "unfinished" if alive is False else "running",
        "outcome": told.get("outcome") if found else None,
        "exit_code": told.get("exit_code") if found else None,
        "reason": str(told.get("reason") or ""),
        "started": str(told.get("started") or iso_time(run.date_s(state.opened_s))),
        "ended": told.get("ended"),
        "wall_s": wall_s,
        "goodput": told.get("goodput"),
        "uses_s": {use: round(uses_s[use], 3) for use in USES if use in uses_s},
        "trouble_s": sum(lost_s.get(use, 0.0) for use in ("detecting", "stopping", "redoing")),
        "restarts": told.get("restarts") or 0,
        "last_step": told.get("last_step")
        if found
        else state.best_step or (state.attempt.step if state.attempt else 0),
        "steps_redone": _steps_redone(attempts),
        "spike_score": told.get("spike_score") or {},
        "notes": [_note(note, run) for note in told.get("notes") or [] if isinstance(note, dict)],
        "attempts": [_attempt(attempt, run) for attempt in attempts],
    }


def _nodes(state: State) -> list[str]:
    """Of the last attempt's ranks, in their order."""
    ranks = sorted(state.attempt.ranks.items()) if state.attempt is not None else []
    return list(dict.fromkeys(rank.rank.node for _, rank in ranks))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _attempt(attempt: dict[str, Any], run: RunFile) -> dict[str, Any]:
    began_s = attempt.get("started_s")
    if attempt.get("started") or not isinstance(began_s, (int, float)):
        return attempt
    return {**attempt, "started": iso_time(run.date_s(began_s))}


def _note(note: dict[str, Any], run: RunFile) -> dict[str, Any]:
    """As summary.json has it."""
    at_s = note.get("at_s")
    if note.get("told") or not isinstance(at_s, (int, float)):
        return note
    return {**{key: value for key, value in note.items() if key != "at_s"}, "told": iso_time(run.date_s(at_s))}


def _steps_redone(attempts: Sequence[dict[str, Any]]) -> int:
    """Steps between where an attempt stopped and where the next one began."""
    redone, furthest = 0, 0
    for number, attempt in enumerate(attempts):
        resumed = attempt.get("resumed_from")
        begins = resumed["step"] if isinstance(resumed, dict) else attempt.get("first_step") or 0
        if number and attempt.get("last_step"):
            redone += max(min(furthest, attempt["last_step"]) - begins, 0)
        furthest = max(furthest, attempt.get("last_step") or 0)
    return redone


def _signs(incidents: Sequence[dict[str, Any]], created_wall_s: float) -> list[RunIncident]:
    signs = []
    for record in incidents:
        try:
            onset_s = parse_iso_time(str(record["onset"])) - created_wall_s
            recovered = record.get("recovered")
            recovered_s = parse_iso_time(str(recovered)) - created_wall_s if recovered else None
        except ValueError:
            continue
        signs.append(RunIncident(str(record.get("id")), str(record.get("cause")), onset_s, recovered_s))
    return signs


VERB = Verb(
    "report", "one page for a whole run: where its time went, what happened, how it went on", _add_arguments, _run
)
