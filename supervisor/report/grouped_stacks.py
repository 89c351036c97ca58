"""Grouped stacks on a page: libraries' frames folded, the user's with their lines from the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.frames import base_name, fold, is_users_file, short_path, waits_for_data
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, MAIN, GroupFrame, StackGroup, frame_words
from guardrun.supervisor.report.elements.source_lines import Sources

MAX_GROUPS = 60
"""Beyond it the page would be slow, and the files are there."""
MAX_OPEN = 4


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
