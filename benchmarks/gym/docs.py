"""The last whole run's tables in docs/gym.md, between two markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.docs import replace_between
from benchmarks.gym.results import Header
from benchmarks.gym.summary import Played, PlayedDecoy, as_markdown

BEGIN = "<!-- results: begin (written by `python benchmarks/gym/run.py --write-docs`) -->"
END = "<!-- results: end -->"


def write_docs(
    page: Path, header: Header, played: Sequence[Played], decoys: Sequence[PlayedDecoy], launchers: Sequence[str]
) -> None:
    """Put a run's tables into the page. Raises OSError, or ValueError where the page has no place for them."""
    loads = [one.seen.load_1m for one in played] + [one.seen.load_1m for one in decoys]
    load = f" Load while it ran: {min(loads):g} to {max(loads):g}." if loads else ""
    about = f"`{header.command}` on {header.machine.date} UTC: {header.machine}.{load}"
    text = f"{about}\n\n{as_markdown(played, decoys, launchers)}"
    page.write_text(replace_between(page.read_text(), text, BEGIN, END))
