"""report.html: an incident for a person, in one file.

Each section stands for itself: one that has nothing to show is left out and named at the end, one that fails says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.observation.stack_grouping import Stack, group_stacks
from guardrun.supervisor.report import evidence_tables
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements.html_page import Guard, plain_page, render
from guardrun.supervisor.report.elements.quantities import duration, parse_iso_time
from guardrun.supervisor.report.elements.source_lines import Sources
from guardrun.supervisor.report.grouped_stacks import show_stacks
from guardrun.supervisor.report.timeline.story import Story, lay_out_ranks, lay_out_steps
from guardrun.supervisor.report.wait_graph import lay_out, make_graph, read_waits

MAX_DATA_CHARS = 200_000
MAX_FILES = 500

_ACTION_TAGS = {
    "none": ("watched", ""),
    "restart": ("restarted", "warn"),
    "isolate_node": ("node isolated", "warn"),
    "give_up": ("gave up", "bad"),
}


def report_html(
    record: dict[str, Any],
    stacks: Sequence[Stack],
    files: Sequence[str] = (),
    story: Story | None = None,
    sources: Sources | None = None,
) -> str:
    """The page for an incident.json, with the stacks that were taken and the names of their files (relative)."""
    evidence: dict[str, Any] = record["evidence"]
    culprits = ev.culprit_ranks(record)
    taken = list(stacks) or ev.evidence_stacks(evidence)
    guard = Guard()
    # Each is called where its section stands, so that one that fails costs itself alone.
    parts: dict[str, Callable[[], Any]] = {
        "figures": lambda: evidence_tables.figures(record),
        "done": lambda: evidence_tables.done(record),
        "waits": lambda: lay_out(make_graph(read_waits(evidence, culprits), evidence, culprits)),
        "ranks_over_time": lambda: lay_out_ranks(story, culprits) if story else None,
        "steps": lambda: lay_out_steps(story) if story else [],
        "verdict": lambda: _verdict(record),
        "ranks": lambda: evidence_tables.ranks_table(evidence, culprits),
        "mismatch": lambda: evidence_tables.mismatch(evidence),
        "workers": lambda: evidence_tables.workers_table(evidence),
        "tracebacks": lambda: ev.tracebacks(evidence),
        "stacks": lambda: show_stacks(group_stacks(taken, culprits), sources or {}),
        "told_stacks": lambda: ev.told_groups(evidence),
        "collectives": lambda: evidence_tables.collectives(evidence),
        "readings": lambda: evidence_tables.readings_table(evidence),
        "skipped": lambda: evidence_tables.skipped_table(evidence),
        "missing": lambda: _missing(record, guard.empty),
        "data": lambda: _data(evidence),
        "links": lambda: [(name, _url(name)) for name in files[:MAX_FILES]],
    }
    return render(
        "incident.html",
        title=_title(record),
        record=record,
        labels=_labels(record),
        guard=guard,
        parts=parts,
        file_count=len(files),
    )


def plain_html(record: dict[str, Any], trouble: str) -> str:
    """The sentence alone, and why there is no more."""
    return plain_page(_title(record), record["summary"], trouble)


def _title(record: dict[str, Any]) -> str:
    return f"{record['kind']}: {record['cause']} · incident {record['id']} · {record['run_id']}"


def _labels(record: dict[str, Any]) -> list[tuple[str, str]]:
    kind = "bad" if record["kind"] in ("hang", "crash", "node") else "warn"
    return [
        (f"{record['kind']}: {record['cause']}", kind),
        (f"{record['confidence']:.0%} sure", ""),
        _ACTION_TAGS.get(record["action"], (record["action"], "")),
        ("recovered", "good") if record["recovered"] else ("" if record["action"] == "give_up" else "going on", ""),
    ]


def _verdict(record: dict[str, Any]) -> dict[str, Any]:
    detected_s = parse_iso_time(record["detected"])
    why_nobody = record["evidence"].get("why_no_culprit")
    nobody = f"none named{f': {why_nobody}' if isinstance(why_nobody, str) else ''}"
    recovered = record["recovered"]
    return {
        "culprits": [ev.culprit_words(culprit) for culprit in record["culprits"]] or [nobody],
        "found_after": duration(max(detected_s - parse_iso_time(record["onset"]), 0)),
        "recovered_after": duration(max(parse_iso_time(recovered) - detected_s, 0)) if recovered else "",
    }


_WHY_MISSING = {
    "Who waits for whom": "nobody was seen to wait for another rank",
    "What every rank did": "guardrun did not see what came before",
    "Time a step": "too few steps were seen (a script's steps are those of its optimizer, or what it tells by step())",
    "Each rank": "no rank was judged",
    "Traceback": "no rank left an exception",
    "Stacks": "none were taken",
    "Collectives": "no rank told which collectives it had called",
    "The node": "no readings were taken",
}
_EXPECTED = {
    "hang": ("Who waits for whom", "What every rank did", "Time a step", "Each rank", "Stacks", "Collectives"),
    "crash": ("What every rank did", "Time a step", "Each rank", "Traceback"),
}


def _missing(record: dict[str, Any], empty: list[str]) -> list[str]:
    """What such a page shows as a rule, and this one does not, and why."""
    expected = _EXPECTED.get(record["kind"], ())
    return [f"{heading}: {_why(heading, record)}." for heading in empty if heading in expected]


def _why(heading: str, record: dict[str, Any]) -> str:
    if heading == "Stacks" and isinstance(troubles := record["evidence"].get("stack_troubles"), list) and troubles:
        return "; ".join(map(str, troubles[:3]))
    return _WHY_MISSING[heading]


def _data(evidence: dict[str, Any]) -> str:
    rest = ev.rest(evidence)
    if not rest:
        return ""
    text = msgspec.json.format(msgspec.json.encode(rest), indent=2).decode(errors="replace")
    if len(text) > MAX_DATA_CHARS:
        text = f"{text[:MAX_DATA_CHARS]}\n… cut; all of it is in incident.json"
    return text


def _url(name: str) -> str:
    """A relative link; `%`, `?`, `#` and `:` would change its meaning."""
    return "".join(f"%{ord(c):02X}" if c in '%?#:"<> ' else c for c in name)
