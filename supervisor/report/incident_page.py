"""report.html: an incident for a person, in one file.

Each section stands for itself: one that has nothing to show is left out and named at the end, one that fails says so.
Stacks are grouped: libraries' frames folded, the user's with their lines from the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.frames import base_name, fold, is_users_file, short_path, waits_for_data
from guardrun.supervisor.engine.observation.stack_grouping import (
    CHILD,
    MAIN,
    GroupFrame,
    Stack,
    StackGroup,
    frame_words,
    group_stacks,
)
from guardrun.supervisor.report import evidence_tables
from guardrun.supervisor.report.elements import evidence_reader as ev
from guardrun.supervisor.report.elements.html_page import Guard, plain_page, render
from guardrun.supervisor.report.elements.quantities import duration, parse_iso_time
from guardrun.supervisor.report.elements.source_lines import Sources
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

MAX_GROUPS = 60
"""Beyond it the page would be slow, and the files are there."""
MAX_OPEN = 4


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
        "by_hand": lambda: evidence_tables.hand_changes_table(evidence),
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
        "skipped_batches": lambda: evidence_tables.left_out_table(evidence),
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


def show_stacks(groups: Sequence[StackGroup], sources: Sources) -> dict[str, Any]:
    """The groups, the odd ones open, apart from those of children and other threads; and what is not shown."""
    main_groups = sum(group.kind == MAIN for group in groups)
    is_data = any(group.is_culprit and _waits_for_data(group) for group in groups)
    found: dict[str, Any] = {"groups": [], "others": [], "notes": []}
    for index, group in enumerate(groups[:MAX_GROUPS]):
        # The odd ones out are what one came for; of one group alone nothing is odd.
        is_odd = group.kind == MAIN and (index == 0 or index < main_groups - 1) and index < MAX_OPEN
        is_worker = is_data and group.is_culprit and group.kind == CHILD and _is_in_users_code(group)
        shown = _group(group, sources, is_open=is_odd or is_worker)
        found["groups" if group.kind == MAIN or is_worker else "others"].append(shown)
    if len(groups) > MAX_GROUPS:
        found["notes"].append(f"{len(groups) - MAX_GROUPS} more are in stacks/.")
    if groups:
        found["notes"] += [f"{file}: the file {source.trouble}." for file, source in sources.items() if source.trouble]
    return found


def _is_in_users_code(group: StackGroup) -> bool:
    return any(is_users_file(frame.file) for frame in group.frames)


def _waits_for_data(group: StackGroup) -> bool:
    return group.kind == MAIN and waits_for_data([Frame(f.function, f.file, f.line) for f in group.frames])


def _group(group: StackGroup, sources: Sources, is_open: bool) -> dict[str, Any]:
    frames = group.frames
    frame = next((f for f in frames if is_users_file(f.file)), frames[0] if frames else None)
    said = [f"in {frame_words(frame)}"] if frame else []
    said += [f"– {group.note}"] if group.note else []
    said += ["– holds the GIL"] if group.owns_gil else []
    return {
        "name": group.title(),
        "said": said,
        "is_culprit": group.is_culprit and group.kind == MAIN,
        "is_open": is_open,
        "parts": _parts(group, sources),
        "spread": _spread(group),
    }


def _parts(group: StackGroup, sources: Sources) -> list[tuple[str, list[dict[str, Any]]]]:
    """Frames, each stretch of a library's under its label."""
    parts: list[tuple[str, list[dict[str, Any]]]] = []
    is_innermost = True
    for part in fold(group.frames):
        shown = []
        for frame in part.frames:
            is_mine = not part.label and is_users_file(frame.file)
            shown.append(_frame(frame, _lines(frame, sources, is_innermost) if is_mine else []))
            is_innermost = is_innermost and not is_mine
        parts.append((part.label, shown))
    return parts


def _frame(frame: GroupFrame, lines: list[tuple[int, str, bool]]) -> dict[str, Any]:
    where = f"{short_path(frame.file)}:{frame.line_words}"
    is_mine = is_users_file(frame.file)
    return {"function": frame.function, "file": frame.file, "where": where, "is_mine": is_mine, "lines": lines}


def _lines(frame: GroupFrame, sources: Sources, has_context: bool) -> list[tuple[int, str, bool]]:
    """The lines that the ranks are in; of the innermost of the user's frames those around them too."""
    source = sources.get(frame.file)
    if source is None:
        return []
    at = frame.lines[:3]
    shown: dict[int, str] = {}
    for line in at:
        shown |= {n: text for n, text in source.around(line) if has_context or n == line}
    return [(n, text.rstrip(), n in at) for n, text in sorted(shown.items())]


def _spread(group: StackGroup) -> str:
    if not group.spread:
        return ""
    frame = next((f for f in group.frames if is_users_file(f.file)), group.frames[0])
    words = "; ".join(f"line {at.line}: rank{'' if at.ranks.isdigit() else 's'} {at.ranks}" for at in group.spread)
    return f"In {frame.function} ({base_name(frame.file)}) at {words}."
