"""A diagnosis on a terminal: the sentence first, then who does what, then stacks, then what to do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from guardrun.supervisor.cli.base.output import Output, clean
from guardrun.supervisor.diagnose import answer as an
from guardrun.supervisor.engine.membership.reachability import names
from guardrun.supervisor.engine.model.actions import ranks_of
from guardrun.supervisor.engine.model.looks import RankLook
from guardrun.supervisor.engine.observation.frames import fold, is_users_file, rank_list
from guardrun.supervisor.engine.observation.stack_grouping import (
    Stack,
    StackGroup,
    frame_words,
    group_stacks,
    stacks_of,
)
from guardrun.supervisor.report.elements.evidence_reader import tracebacks
from guardrun.supervisor.report.elements.quantities import place_words

# Stack view ---------------------------------------------------------------------------------------------------------
# Grouped stacks on a terminal.


Nodes = Mapping[int, str]
"""Of each rank, in a job of several nodes; else empty."""
_HERE: Nodes = {}


def print_stacks(
    out: Output, stacks: Sequence[Stack], culprits: Sequence[int] = (), is_full: bool = False, nodes: Nodes = _HERE
) -> None:
    """Print stacks, equal ones once, innermost frame first; library frames folded unless is_full."""
    for number, group in enumerate(group_stacks(stacks, culprits)):
        if number:
            out.line()
        _print_group(out, group, is_full, nodes)


def print_each(out: Output, stacks: Sequence[Stack], is_full: bool = False, nodes: Nodes = _HERE) -> None:
    """Print every stack by itself, rank by rank."""
    for number, stack in enumerate(stacks):
        if number:
            out.line()
        _print_group(out, group_stacks([stack])[0], is_full, nodes)


def _print_group(out: Output, group: StackGroup, is_full: bool, nodes: Nodes) -> None:
    note = f": {group.note}" if group.note else ""
    gil = ", holds the GIL" if group.owns_gil else ""
    there = list(dict.fromkeys(nodes[rank] for rank in group.ranks if rank in nodes))
    where = f" on {names(there)}" if there else ""
    out.line(f"{group.title()}{where}{gil}{note}", "bold")
    if not group.frames:
        out.line("    no Python frames", "dim")
    for part in fold(group.frames):
        if part.label and not is_full:
            out.line(f"    … {part.label}", "dim")
            continue
        for frame in part.frames:
            out.line(f"    {frame_words(frame)}", "" if is_users_file(frame.file) else "dim")
    if group.spread:
        out.line("    at " + "; ".join(f"line {at.line}: ranks {at.ranks}" for at in group.spread), "dim")


# Incident view ------------------------------------------------------------------------------------------------------
# Incidents in a list: a table where there is room, else two lines each.


HEADINGS = ("Incident", "Cause", "Step", "Detected", "Action", "Recovered", "What")
TABLE_COLUMNS = 110
"""Below it the sentence would be a column of single words."""


def incidents_view(out: Output, records: list[dict[str, Any]]) -> RenderableType:
    """The list, oldest first. Times are UTC."""
    rows = [_row(record) for record in records]
    if out.console.width >= TABLE_COLUMNS:
        return out.make_table(HEADINGS, rows)
    return Group(*(part for row in rows for part in _two_lines(row)))


def _two_lines(row: list[str]) -> list[RenderableType]:
    number, cause, step, detected, action, recovered, what = (clean(cell) for cell in row)
    facts = [cause, f"step {step}" if step else "", detected, action, f"recovered {recovered}" if recovered else ""]
    head = Text(number, style="bold")
    head.append("  " + " · ".join(fact for fact in facts if fact), "dim")
    return [head, Padding(Text(what), (0, 0, 0, 2))]


def _row(record: dict[str, Any]) -> list[str]:
    recovered = record.get("recovered")
    return [
        str(record.get("id", "")),
        f"{record.get('kind', '')} {record.get('cause', '')}",
        "" if record.get("step") is None else str(record["step"]),
        _clock(record.get("detected")),
        str(record.get("action", "")).replace("_", " "),
        _clock(recovered) if recovered else "",
        str(record.get("summary", "")),
    ]


def _clock(iso: Any) -> str:
    """`11-20 23:53:34` of a UTC time."""
    return str(iso)[5:19].replace("T", " ") if iso else ""


# Diagnosis view -----------------------------------------------------------------------------------------------------


_STYLES = {
    an.HEALTHY: "green",
    an.STARTING: "green",
    an.FINISHED: "green",
    an.SUSPICIOUS: "yellow",
    an.UNKNOWN: "yellow",
    an.HANG: "red",
    an.CRASHED: "red",
}
MAX_INCIDENTS = 8
WIDE_COLUMNS = 110
"""Below it a rank's reason has no room beside where it is, and gets a line of its own."""


def print_diagnosis(out: Output, diagnosis: an.Diagnosis, looks: list[RankLook], is_full: bool) -> None:
    """Print all of it; stacks only where something stands still."""
    out.print(_head(diagnosis))
    _print_ranks(out, diagnosis)
    if diagnosis.incidents and diagnosis.target.source == "directory":
        out.line()
        out.print(incidents_view(out, diagnosis.incidents[-MAX_INCIDENTS:]))
    for heading, text in tracebacks(diagnosis.evidence.get("incident") or {}):
        out.line()
        out.line(heading or "Traceback", "bold")
        out.line(text)
    is_stuck = diagnosis.verdict in (an.HANG, an.SUSPICIOUS, an.UNKNOWN)
    if looks and (is_stuck or is_full):
        out.line()
        culprits = ranks_of(diagnosis.culprits)
        print_stacks(out, [stack for look in looks for stack in stacks_of(look)], culprits, is_full)
    if diagnosis.advice:
        out.line()
        out.line(diagnosis.advice)
    _print_unseen(out, diagnosis)
    _print_next(out, diagnosis)


def _head(diagnosis: an.Diagnosis) -> Text:
    text = Text()
    text.append(diagnosis.verdict, f"bold {_STYLES.get(diagnosis.verdict, '')}".strip())
    facts = [
        f"{diagnosis.kind} {diagnosis.cause}" if diagnosis.cause and diagnosis.verdict != an.HANG else "",
        diagnosis.cause if diagnosis.cause and diagnosis.verdict == an.HANG else "",
        f"{diagnosis.confidence:.0%} sure",
        _target_words(diagnosis),
    ]
    text.append("".join(f" · {clean(fact)}" for fact in facts if fact))
    text.append("\n")
    text.append(clean(diagnosis.summary), "bold")
    if diagnosis.why:
        text.append(f"\n{clean(diagnosis.why)}", "dim")
    return text


def _target_words(diagnosis: an.Diagnosis) -> str:
    target = diagnosis.target
    size = f"{target.world_size} ranks" if target.world_size and target.world_size > 1 else "1 rank"
    if target.kind == "run":
        attempt = "" if target.attempt is None else f", attempt {target.attempt}"
        where = place_words(target.node, _nodes(diagnosis.ranks))
        return f"run {target.run_id}{attempt}, {size} on {where}"
    pids = ", ".join(map(str, target.pids[:4])) + (" …" if len(target.pids) > 4 else "")
    return f"process{'es' if len(target.pids) > 1 else ''} {pids}, world size {target.world_size}, on {target.node}"


def _nodes(lines: list[an.RankLine]) -> list[str]:
    return list(dict.fromkeys(line.node for line in lines))


def _print_ranks(out: Output, diagnosis: an.Diagnosis) -> None:
    groups = _grouped(diagnosis.ranks)
    if not groups:
        return
    rows, styles = [], []
    has_nodes = len(_nodes(diagnosis.ranks)) > 1
    for group in groups:
        first = group[0]
        cpu = "" if first.cpu is None else f"{max(line.cpu or 0.0 for line in group):.0%}"
        step = _range([line.step for line in group if line.step is not None])
        pid = str(first.pid) if len(group) == 1 else ""
        where = [names(_nodes(group))] if has_nodes else []
        cells = [
            rank_list([line.rank for line in group]),
            *where,
            pid,
            first.doing.replace("_", " "),
            first.at,
            cpu,
            step,
        ]
        rows.append([*cells, first.reason])
        styles.append("red" if first.is_culprit else "")
    out.line()
    headings = ("Rank", *(["Node"] if has_nodes else []), "PID", "Does", "Where", "CPU", "Step", "Why")
    if out.console.width >= WIDE_COLUMNS:
        out.table(headings, rows, styles)
        return
    out.table(headings[:-1], [row[:-1] for row in rows], styles)
    for row, style in zip(rows, styles, strict=True):
        if row[-1]:
            out.print(Padding(Text(f"{row[0]}: {clean(row[-1])}", style=style or "dim"), (0, 0, 0, 1)))


def _grouped(lines: list[an.RankLine]) -> list[list[an.RankLine]]:
    """Ranks that do the same at the same place, culprits first, then the fewest."""
    groups: dict[Any, list[an.RankLine]] = {}
    for line in lines:
        key = (line.is_culprit, line.doing, _without_digits(line.reason), line.at, line.exitcode)
        groups.setdefault(key, []).append(line)
    return sorted(groups.values(), key=lambda group: (not group[0].is_culprit, len(group), group[0].rank))


def _without_digits(reason: str) -> str:
    """Figures in a reason differ from rank to rank; what it says doesn't."""
    return "".join("#" if c.isdigit() else c for c in reason)


def _range(steps: list[int]) -> str:
    if not steps:
        return ""
    return str(min(steps)) if min(steps) == max(steps) else f"{min(steps)}-{max(steps)}"


def _print_unseen(out: Output, diagnosis: an.Diagnosis) -> None:
    if not diagnosis.unseen:
        return
    out.line()
    for item in diagnosis.unseen:
        out.line(f"{item.what}: {item.why}", "yellow")


def _print_next(out: Output, diagnosis: an.Diagnosis) -> None:
    if not diagnosis.next:
        return
    out.line()
    out.line("Next", "bold")
    for step in diagnosis.next:
        # A command is copied: it stays on one line of its own, however long.
        out.print(Text(f"  {clean(shlex.join(step.command))}", no_wrap=True, overflow="ignore"))
        note = " (changes something)" if step.changes else ""
        out.print(Padding(Text(clean(step.why) + note, style="dim"), (0, 0, 0, 6)))
