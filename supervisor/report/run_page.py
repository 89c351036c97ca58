"""RUN/report.html: a whole run for a person, in one file that links to its incidents' own pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.report import save_interval
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements.html_page import Guard, Table, make_table, render
from guardrun.supervisor.report.elements.quantities import duration, place_words
from guardrun.supervisor.report.elements.scales import percent
from guardrun.supervisor.report.timeline.story import Story, lay_out_ranks, lay_out_steps

MAX_ROWS = 500
USES = {
    "training": "getting further",
    "detecting": "from the last progress to the verdict",
    "stopping": "ending what was left of an attempt",
    "starting": "from then to the first progress",
    "redoing": "repeating steps that an earlier attempt had done",
    "other": "frozen, not running, clearing up",
}
"""Where time goes: what summary.json calls it, and what it is."""


def run_html(data: dict[str, Any], story: Story | None) -> str:
    """The page for what `guardctl report --json` says."""
    incidents: list[dict[str, Any]] = data["incidents"]
    culprits = sorted({rank for record in incidents for rank in ev.culprit_ranks(record)})
    # Each is called where its section stands, so that one that fails costs itself alone.
    parts: dict[str, Callable[[], Any]] = {
        "figures": lambda: _figures(data),
        "incidents": lambda: [_incident(record) for record in incidents[:MAX_ROWS]],
        "notes": lambda: [_note(note) for note in data.get("notes") or []],
        "uses": lambda: _uses(data["uses_s"]),
        "saves": lambda: _saves(data.get("save_interval")),
        "ranks_over_time": lambda: lay_out_ranks(story, culprits) if story else None,
        "steps": lambda: lay_out_steps(story) if story else [],
        "attempts": lambda: _attempts(data["attempts"]),
        "facts": lambda: _facts(data),
        "missing": lambda: _missing(data, story),
    }
    return render(
        "run.html",
        title=f"run {data['run_id']}: {data['outcome'] or data['state']}",
        where=f"guardrun · run {data['run_id']} on {_place(data)}",
        headline=headline(data),
        labels=_labels(data),
        guard=Guard(),
        parts=parts,
        incident_count=len(incidents),
    )


def headline(data: dict[str, Any]) -> str:
    """The run in one sentence."""
    outcome = data["outcome"]
    states = {
        "finished": "Training ended well",
        "failed": "Training failed",
        "gave_up": "guardrun gave up",
        "interrupted": "Training was interrupted",
        "preempted": "The job was ended by its scheduler",
    }
    words = states.get(str(outcome), "Training goes on" if data["is_alive"] else "Training has not come to its end")
    step = f" at step {data['last_step']}" if data["last_step"] is not None else ""
    count, restarts = len(data["incidents"]), data["restarts"] or 0
    many = "no incident" if not count else f"{count} incident{'s' if count != 1 else ''}"
    again = f" and {restarts} restart{'s' if restarts != 1 else ''}" if restarts else ""
    reason = f": {data['reason']}" if data["reason"] and outcome not in (None, "finished") else ""
    return f"{words}{step} after {duration(data['wall_s'] or 0.0)}, with {many}{again}{reason}."


def _labels(data: dict[str, Any]) -> list[tuple[str, str]]:
    outcome = data["outcome"] or data["state"]
    kind = {"finished": "good", "failed": "bad", "gave_up": "bad", "unfinished": "bad"}.get(outcome, "warn")
    code = data["exit_code"]
    return [(outcome.replace("_", " "), kind), ("" if code is None else f"exit code {code}", "")]


def _figures(data: dict[str, Any]) -> list[tuple[str, str]]:
    cards = [
        ("goodput", "" if data["goodput"] is None else f"{data['goodput']:.1%}"),
        ("in all", "" if data["wall_s"] is None else duration(data["wall_s"])),
        ("lost to trouble", duration(data["trouble_s"]) if data["trouble_s"] is not None else ""),
        ("steps done again", "" if data["steps_redone"] is None else str(data["steps_redone"])),
        *_spike_scores(data),
    ]
    return [card for card in cards if card[1]]


def _spike_scores(data: dict[str, Any]) -> list[tuple[str, str]]:
    score = data.get("spike_score") or {}
    named = (("spike score, loss", score.get("loss")), ("spike score, gradient norm", score.get("grad_norm")))
    return [(name, f"{share:.2%}") for name, share in named if isinstance(share, (int, float))]


def _incident(record: dict[str, Any]) -> dict[str, str]:
    link = record.get("page")
    facts = [
        str(record.get("onset") or "")[:19].replace("T", " "),
        f"step {record['step']}" if record.get("step") is not None else "",
        str(record.get("action") or "").replace("_", " "),
        "recovered" if record.get("recovered") else "not recovered",
    ]
    return {
        "name": f"{record.get('id')} {record.get('cause')}",
        "link": quote(link) if isinstance(link, str) else "",
        "facts": " · ".join(fact for fact in facts if fact),
        "summary": str(record.get("summary") or ""),
    }


def _note(note: dict[str, Any]) -> dict[str, str]:
    step = f"step {note['step']}" if note.get("step") is not None else ""
    facts = [str(note.get("told") or "")[:19].replace("T", " "), step]
    return {
        "name": str(note.get("topic") or ""),
        "facts": " · ".join(fact for fact in facts if fact),
        "text": f"{note.get('text') or ''} {note.get('advice') or ''}",
    }


def _uses(uses: dict[str, float]) -> dict[str, Any] | None:
    """Where the time went, as one bar and as a table."""
    whole_s = sum(uses.values())
    if whole_s <= 0:
        return None
    bars, left = [], 0.0
    for use, seconds in uses.items():
        share = 100 * seconds / whole_s
        bars.append((use, percent(left), percent(share), f"{use}: {duration(seconds)}"))
        left += share
    rows = [
        ("", [use, USES.get(use, ""), duration(seconds), f"{seconds / whole_s:.1%}"]) for use, seconds in uses.items()
    ]
    used = {use: seconds for use, seconds in uses.items() if seconds > 0}
    return {
        "label": f"Share of the time: {', '.join(f'{use} {seconds / whole_s:.0%}' for use, seconds in used.items())}",
        "bars": bars,
        "uses": list(used),
        "table": make_table(["Use", "What that is", "Time", "Share"], rows, wide=("What that is",)),
    }


def _saves(found: dict[str, Any] | None) -> str:
    return save_interval.describe(msgspec.convert(found, known_type(save_interval.SaveInterval))) if found else ""


def _attempts(attempts: list[dict[str, Any]]) -> Table | None:
    rows = []
    for attempt in attempts[:MAX_ROWS]:
        resumed = attempt.get("resumed_from")
        began_s, ended_s = attempt.get("started_s"), attempt.get("ended_s")
        took = duration(max(ended_s - began_s, 0.0)) if began_s is not None and ended_s is not None else ""
        steps = [attempt.get("first_step"), attempt.get("last_step")]
        rows.append(
            (
                "",
                [
                    str(attempt.get("attempt", "")),
                    str(attempt.get("started") or "")[:19].replace("T", " "),
                    took,
                    "–".join(str(step) for step in steps if step is not None),
                    f"step {resumed['step']}" if resumed else "the beginning",
                    str(attempt.get("outcome") or "").replace("_", " "),
                    str(attempt.get("incident") or ""),
                ],
            )
        )
    headings = ["Attempt", "Started", "Took", "Steps", "From", "Ended by", "Incident"]
    return make_table(headings, rows, wide=("Ended by",))


def _place(data: dict[str, Any]) -> str:
    return place_words(data["node"], data.get("nodes") or [])


def _facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("Run", data["run_id"]),
        ("Node" if len(data.get("nodes") or []) < 2 else "Nodes", _place(data)),
        ("Ranks", str(data["world_size"] or "")),
        ("Command", " ".join(data["command"])),
        ("Folder", data["run_dir"]),
        ("Started", str(data["started"] or "")),
        ("Ended", str(data["ended"] or "")),
    ]


def _missing(data: dict[str, Any], story: Story | None) -> list[str]:
    told = [str(trouble) for trouble in data["troubles"]]
    if story is None or not story.view.rows:
        told.append("no timeline: the journal holds no attempt that can be read")
    elif story.view.known_from_s > 1.0:
        told.append(f"the first {duration(story.view.known_from_s)}: their part of the journal is not kept")
    return [f"{words}." for words in told[:20]]
