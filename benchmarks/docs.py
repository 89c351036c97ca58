"""The last real run's table in docs/benchmarks.md, between two markers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import Report
from benchmarks.table import as_markdown

BEGIN = "<!-- figures: begin (written by `python benchmarks/run.py --write-docs`) -->"
END = "<!-- figures: end -->"


def render(report: Report) -> str:
    """What stands between the markers."""
    busy = f" The machine was busy (load {report.machine.load_1m:g})." if report.machine.is_busy else ""
    failed = "".join(f"\nNot measured: {failure.item}.\n" for failure in report.failures)
    run = f"`{report.command}` on {report.machine.date} UTC, in {report.took_s / 60:.0f} minutes"
    return f"{run}: {report.machine}.{busy}\n\n{as_markdown(report)}{failed}"


def replace_between(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with what is between the markers replaced. Raises ValueError where they are not there, once each."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last or end in after or begin in after:
        raise ValueError(f"the page has not exactly one {begin} followed by one {end}")
    return f"{before}{begin}\n{text}{end}{after}"


def write_docs(page: Path, report: Report) -> None:
    """Put a run's table into the page. Raises OSError, or ValueError where the page has no place for it."""
    page.write_text(replace_between(page.read_text(), render(report)))
