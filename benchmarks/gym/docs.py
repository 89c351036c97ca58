"""The last whole run's tables in docs/gym.md, between two markers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.docs import replace_between
from benchmarks.gym.emu import tables
from benchmarks.gym.observation import Observation
from benchmarks.gym.results import Header
from benchmarks.gym.summary import Played, PlayedDecoy, as_markdown

BEGIN = "<!-- results: begin (written by `python benchmarks/gym/run.py --write-docs`) -->"
END = "<!-- results: end -->"
EMU_BEGIN = "<!-- emu: begin (written by `python benchmarks/gym/run.py --emu --write-docs`) -->"
EMU_END = "<!-- emu: end -->"
Render = Callable[[Sequence[Played], Sequence[PlayedDecoy], Sequence[str]], str]


def write_docs(
    page: Path,
    header: Header,
    played: Sequence[Played],
    decoys: Sequence[PlayedDecoy],
    launchers: Sequence[str],
    *,
    is_emu: bool = False,
) -> None:
    """Put a run's tables into the page. Raises OSError, or ValueError where the page has no place for them."""
    render: Render = tables.as_markdown if is_emu else as_markdown
    seen = [one.seen for one in played] + [one.seen for one in decoys]
    about = f"`{header.command}` on {header.machine}.\n\n" + when(seen, launchers)
    text = f"{about}\n{render(played, decoys, launchers)}"
    begin, end = (EMU_BEGIN, EMU_END) if is_emu else (BEGIN, END)
    page.write_text(replace_between(page.read_text(), text, begin, end))


def when(seen: Sequence[Observation], launchers: Sequence[str]) -> str:
    """A line for each launcher: when its cases were begun, how busy the machine was then, and how patient guardrun."""
    lines = []
    for name in launchers:
        own = sorted((one for one in seen if one.launcher == name), key=lambda one: one.date)
        if own:
            loads = [one.load_1m for one in own]
            span = f"{own[0].date[:16]} to {own[-1].date[11:16]} UTC"
            load = f"load average {min(loads):g} to {max(loads):g}, median {median(loads):g}"
            patience = "".join(f"; {words}" for words in sorted({str(one.patience) for one in own if one.patience}))
            lines.append(f"- {name}: {len(own)} cases, {span}, {load}{patience}\n")
    return "".join(lines)
