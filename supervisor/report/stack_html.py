"""Grouped stacks on a page: libraries' frames folded, the user's with their lines from the source."""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.frame_folding import fold, short_path
from guardrun.supervisor.engine.observation.frames import base_name, is_users_file, waits_for_data
from guardrun.supervisor.engine.observation.stack_grouping import GroupFrame, StackGroup, frame_words
from guardrun.supervisor.engine.observation.stacks import CHILD, MAIN
from guardrun.supervisor.report.elements import html_page
from guardrun.supervisor.report.elements.quantities import escape
from guardrun.supervisor.report.elements.source_lines import Source, Sources

MAX_GROUPS = 60
"""Beyond it the page would be slow, and the files are there."""
MAX_OPEN = 4


def stacks_html(groups: Sequence[StackGroup], sources: Sources) -> str:
    """All groups, the odd ones open; nothing where there are none."""
    main_groups = sum(group.kind == MAIN for group in groups)
    is_data = any(group.is_culprit and _waits_for_data(group) for group in groups)
    parts: list[str] = []
    others: list[str] = []
    for index, group in enumerate(groups[:MAX_GROUPS]):
        # The odd ones out are what one came for; of one group alone nothing is odd.
        is_odd = group.kind == MAIN and (index == 0 or index < main_groups - 1) and index < MAX_OPEN
        is_worker = is_data and group.is_culprit and group.kind == CHILD and _is_in_users_code(group)
        part = html_page.folded(_title(group), _body(group, sources), is_open=is_odd or is_worker)
        (parts if group.kind == MAIN or is_worker else others).append(part)
    if others:
        inner = "\n".join(others)
        parts.append(html_page.folded(f'<span class="soft">{len(others)} of children and other threads</span>', inner))
    if len(groups) > MAX_GROUPS:
        parts.append(html_page.paragraph(f"{len(groups) - MAX_GROUPS} more are in stacks/.", "soft"))
    if parts:
        parts += [
            html_page.paragraph(f"{file}: the file {source.trouble}.", "soft") for file, source in _troubles(sources)
        ]
    return "\n".join(parts)


def _is_in_users_code(group: StackGroup) -> bool:
    return any(is_users_file(frame.file) for frame in group.frames)


def _waits_for_data(group: StackGroup) -> bool:
    return group.kind == MAIN and waits_for_data([Frame(f.function, f.file, f.line) for f in group.frames])


def _troubles(sources: Sources) -> list[tuple[str, Source]]:
    return [(file, source) for file, source in sources.items() if source.trouble]


def _title(group: StackGroup) -> str:
    frames = group.frames
    frame = next((f for f in frames if is_users_file(f.file)), frames[0] if frames else None)
    where = f' <span class="soft">in {escape(frame_words(frame))}</span>' if frame else ""
    note = f' <span class="soft">– {escape(group.note)}</span>' if group.note else ""
    gil = ' <span class="soft">– holds the GIL</span>' if group.owns_gil else ""
    culprit = '<span class="bad">✖</span> ' if group.is_culprit and group.kind == MAIN else ""
    return f"{culprit}<strong>{escape(group.title())}</strong>{where}{note}{gil}"


def _body(group: StackGroup, sources: Sources) -> str:
    if not group.frames:
        return html_page.paragraph("No Python frames.", "soft")
    items: list[str] = []
    is_innermost = True
    for part in fold(group.frames):
        if part.label:
            inner = "".join(f"<li>{_frame(frame)}</li>" for frame in part.frames)
            summary = f"<summary>… {escape(part.label)}</summary>"
            items.append(f"<li><details>{summary}<ol>{inner}</ol></details></li>")
            continue
        for frame in part.frames:
            is_mine = is_users_file(frame.file)
            lines = _source(frame, sources, is_innermost) if is_mine else ""
            items.append(f"<li>{_frame(frame)}{lines}</li>")
            is_innermost = is_innermost and not is_mine
    return f'<ol class="stack">{"".join(items)}</ol>{_spread(group)}'


def _frame(frame: GroupFrame) -> str:
    kind = ' class="mine"' if is_users_file(frame.file) else ""
    where = escape(f"{short_path(frame.file)}:{frame.line_words}")
    return f'<code{kind} title="{escape(frame.file)}">{escape(frame.function)} <span class="file">{where}</span></code>'


def _source(frame: GroupFrame, sources: Sources, has_context: bool) -> str:
    """The lines that the ranks are in; of the innermost of the user's frames those around them too."""
    source = sources.get(frame.file)
    if source is None or not source.lines:
        return ""
    at = frame.lines[:3]
    shown: dict[int, str] = {}
    for line in at:
        shown |= {n: text for n, text in source.around(line) if has_context or n == line}
    rows = "".join(
        f'<span class="{"at" if n in at else "near"}"><span class="number">{"▸" if n in at else " "}{n:>5} </span>'
        f"{escape(text.rstrip())}\n</span>"
        for n, text in sorted(shown.items())
    )
    return f'<pre class="source">{rows}</pre>' if rows else ""


def _spread(group: StackGroup) -> str:
    if not group.spread:
        return ""
    frame = next((f for f in group.frames if is_users_file(f.file)), group.frames[0])
    words = "; ".join(f"line {at.line}: rank{'' if at.ranks.isdigit() else 's'} {at.ranks}" for at in group.spread)
    return html_page.paragraph(f"In {frame.function} ({base_name(frame.file)}) at {words}.", "soft")
