"""What a run that is over tells: how it ended, of what, what is still open, and where the evidence lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.diagnose.hang_finding import EXITED
from guardrun.supervisor.diagnose.verdict import exit_words
from guardrun.supervisor.engine.model.actions import Culprit
from guardrun.supervisor.report.elements.quantities import duration, iso_time
from guardrun.supervisor.report.run_record import (
    Recorded,
    read_incidents,
    read_json,
    read_recorded,
    short_incident,
)
from guardrun.supervisor.rundir.run_directory import RunFile

FINISHED, INTERRUPTED, PREEMPTED = "finished", "interrupted", "preempted"
"""Outcomes that are nobody's fault."""


class Left(msgspec.Struct, kw_only=True):
    """What is known of a run's end from outside of its directory."""

    has_rebooted: bool = False
    """The machine has, since the run began."""
    alive: list[int] = []
    """Processes of the run that are alive all the same."""


def conclude_past(run_dir: Path, run: RunFile, left: Left) -> an.Diagnosis:
    """The verdict on a run whose guardrun is gone. Never raises because something is missing there."""
    incidents = read_incidents(run_dir)
    recorded = read_recorded(run_dir)
    summary = read_json(run_dir / "summary.json")
    target = an.Target(
        kind="run",
        source="directory",
        node=run.node,
        world_size=recorded.world_size or len(recorded.ranks) or None,
        run_id=run.run_id,
        run_dir=str(run_dir),
        attempt=recorded.attempt,
    )
    if summary is not None:
        diagnosis = _ended(target, summary, incidents)
    else:
        diagnosis = _cut_off(target, recorded, run, left, incidents)
    diagnosis.ranks = [_rank_line(rank, diagnosis) for _, rank in sorted(recorded.ranks.items())]
    if diagnosis.step is None:
        diagnosis.step = max((rank.step for rank in recorded.ranks.values()), default=0) or None
    diagnosis.incidents = [short_incident(record) for record in incidents]
    diagnosis.evidence["files"] = _files(run_dir, incidents)
    return diagnosis


def _ended(target: an.Target, summary: dict[str, Any], incidents: list[dict[str, Any]]) -> an.Diagnosis:
    """guardrun itself wrote the end."""
    outcome, code = str(summary.get("outcome", "")), summary.get("exit_code")
    took = duration(float(summary.get("wall_s") or 0.0))
    restarts = summary.get("restarts") or 0
    again = f", with {restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
    step = f" at step {summary['last_step']}" if summary.get("last_step") else ""
    why = f"summary.json: {outcome}, exit code {code}, at {summary.get('ended')}"
    evidence: dict[str, Any] = {"outcome": outcome, "exit_code": code, "reason": summary.get("reason")}
    evidence |= {"ended": summary.get("ended"), "goodput": summary.get("goodput"), "lost_s": summary.get("lost_s")}
    evidence["not_recovered"] = [i.get("id") for i in incidents if i.get("recovered") is None]
    diagnosis = an.Diagnosis(
        target=target,
        verdict=an.FINISHED if outcome in (FINISHED, INTERRUPTED, PREEMPTED) else an.CRASHED,
        confidence=1.0,
        summary=f"Training ended well{step}, after {took}{again}.",
        why=why,
        step=summary.get("last_step"),
        evidence=evidence,
    )
    if outcome == PREEMPTED:
        diagnosis.summary = f"The scheduler ended the job ({summary.get('reason')}){step}, after {took}{again}."
        _take_cause(diagnosis, incidents)
    elif outcome == INTERRUPTED:
        diagnosis.summary = f"The run was ended from outside ({summary.get('reason')}){step}, after {took}{again}."
    elif diagnosis.verdict == an.CRASHED:
        said = {"gave_up": "guardrun gave up", "failed": "The run failed"}.get(outcome, f"The run ended ({outcome})")
        diagnosis.summary = f"{said}{step}, after {took}{again}: {summary.get('reason') or 'no reason was left'}."
        _take_cause(diagnosis, incidents)
    return diagnosis


def _take_cause(diagnosis: an.Diagnosis, incidents: list[dict[str, Any]]) -> None:
    """The last incident that training never got past is what ended it."""
    last = next((record for record in reversed(incidents) if record.get("recovered") is None), None)
    if last is None:
        return
    diagnosis.summary = f"{diagnosis.summary} {last.get('summary', '')}".strip()
    diagnosis.kind, diagnosis.cause = last.get("kind"), last.get("cause")
    diagnosis.confidence = float(last.get("confidence") or 0.0)
    diagnosis.onset, diagnosis.advice = last.get("onset"), str(last.get("advice") or "")
    diagnosis.culprits = culprits_from(last)
    diagnosis.evidence["incident"] = last.get("evidence")


def culprits_from(record: dict[str, Any]) -> list[Culprit]:
    """Those of an incident.json."""
    try:
        return msgspec.convert(record.get("culprits") or [], known_type(list[Culprit]))
    except msgspec.ValidationError:
        return []


def _cut_off(
    target: an.Target, recorded: Recorded, run: RunFile, left: Left, incidents: list[dict[str, Any]]
) -> an.Diagnosis:
    """The journal has no end: whoever writes it was killed with the rest."""
    ended = iso_time(run.date_s(recorded.last_s)) if recorded.last_s else None
    steps = max((rank.step for rank in recorded.ranks.values()), default=0)
    where = f" at step {steps}" if steps else ""
    if ended is None:
        told = "The run left no journal: its guardrun is gone, and nothing tells when or why."
    elif left.has_rebooted:
        told = f"The machine has restarted under the run: the last word of its journal is of {ended}{where}."
    else:
        told = (
            f"guardrun and its supervisor were killed, or the node was cut off: the journal ends without an end{where}"
            f", its last word of {ended}, {duration(recorded.last_s)} after the start."
        )
    diagnosis = an.Diagnosis(
        target=target,
        verdict=an.CRASHED,
        kind="node" if left.has_rebooted else "crash",
        cause="node_lost" if left.has_rebooted else "killed",
        confidence=0.9 if left.has_rebooted else 0.7,
        summary=told,
        why="there is no summary.json, and the process that would write it is gone",
        onset=ended,
        evidence={"journal_ends": ended, "alive": left.alive},
        advice="See the kernel log and the scheduler's for what killed it; the same --guard-run-id continues the run.",
    )
    diagnosis.evidence["not_recovered"] = [i.get("id") for i in incidents if i.get("recovered") is None]
    if left.alive:
        pids = ", ".join(map(str, left.alive[:8]))
        what = f"process{'es' if len(left.alive) > 1 else ''} {pids}"
        diagnosis.unseen.append(an.Unseen(what=what, why="of this run, still alive, and nobody watches over it"))
    return diagnosis


def _rank_line(rank: Any, diagnosis: an.Diagnosis) -> an.RankLine:
    code = rank.exitcode
    return an.RankLine(
        rank=rank.global_rank,
        local_rank=rank.local_rank,
        node=rank.node,
        pid=rank.pid,
        doing=EXITED,
        reason="how it ended is not recorded" if code is None else exit_words(code),
        is_culprit=rank.global_rank in {culprit.rank for culprit in diagnosis.culprits},
        step=rank.step or None,
        phase=rank.phase,
        exitcode=code,
    )


def _files(run_dir: Path, incidents: list[dict[str, Any]]) -> dict[str, Any]:
    """Which evidence is where; only what is really there."""
    folders = [Path(record["folder"]) for record in incidents]
    return {
        "journal": [str(path) for path in sorted(run_dir.glob("events.jsonl*"))],
        "log": [str(path) for path in (run_dir / "guardrun.log",) if path.exists()],
        "reports": [str(path) for folder in folders if (path := folder / "report.html").exists()],
        "stacks": [str(path) for folder in folders if (path := folder / "stacks").is_dir()],
        "looks": [str(path) for path in sorted(run_dir.glob("looks/*"))][-8:],
    }
