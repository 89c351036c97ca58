"""The newest result of all rows in docs/security.md, between two markers: `--write-faults` writes it.

In one run of pytest, of all rows: what is left out of it would stand there with another day's result.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from benchmarks.docs import replace_between
from benchmarks.machine import Machine, describe
from tests.faults.row import Row
from tests.faults.table import TABLE
from tests.project.purity import ROOT

PAGE = ROOT / "docs" / "security.md"
BEGIN = "<!-- faults: begin (written by `make soak PYTEST_ARGS=--write-faults`) -->"
END = "<!-- faults: end -->"
PROPERTY = "fault"
"""Of a test's user properties: the name of its row, what was seen, and how many hostile messages were sent."""
MAX_SEEN = 160
HEADER = ("part", "fault", "when", "what must hold", "seen", "s", "")


@dataclass
class Result:
    """What became of a row."""

    seen: str = ""
    messages: int = 0
    took_s: float = 0.0
    failure: str = ""
    """Why it did not hold, in a line; empty where it did."""
    skipped: str = ""
    """Why it could not be played."""

    @property
    def is_survived(self) -> bool:
        return not self.failure and not self.skipped


class Recorder:
    """The plugin, in the process that hears of all tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._command = shlex.join(["pytest", *map(str, config.invocation_params.args)])
        self._machine = describe()
        self._began_s = time.monotonic()
        self._results: dict[str, Result] = {}
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[2].removesuffix("]")
        if not report.nodeid.startswith("tests/faults/test_faults.py::") or not name:
            return
        result = self._results.setdefault(name, Result())
        result.took_s += report.duration
        found = dict(report.user_properties).get(PROPERTY)
        if isinstance(found, dict):
            result.seen, result.messages = str(found["seen"]), int(found["messages"])
        if report.failed:
            result.failure = result.failure or one_line(report)
        elif report.skipped:
            result.skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)

    def pytest_sessionfinish(self) -> None:
        missing = [row.name for row in TABLE if row.name not in self._results]
        if missing:
            self._said = f"the page is left as it was: {len(missing)} rows were not played ({missing[0]}, …)"
            return
        text = render(TABLE, self._results, self._machine, self._command, time.monotonic() - self._began_s)
        PAGE.write_text(replace_between(PAGE.read_text(), text, BEGIN, END))
        self._said = f"written: {PAGE}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("faults")
        terminalreporter.line(self._said)


def one_line(report: pytest.TestReport) -> str:
    """What a failed test has to say first."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return " ".join(text.split())[:MAX_SEEN]


def in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def cells(row: Row, result: Result) -> tuple[str, ...]:
    """A row of the page."""
    seen = result.failure or (f"not played: {result.skipped}" if result.skipped else result.seen or "so it was")
    fate = "survived" if result.is_survived else "" if result.skipped else "**lost**"
    return row.part, row.fault, row.moment, row.story.holds, in_cell(seen), f"{result.took_s:.0f}", fate


def figures(results: Sequence[Result]) -> str:
    """The whole in a line."""
    survived = sum(result.is_survived for result in results)
    failed = sum(bool(result.failure) for result in results)
    skipped = len(results) - survived - failed
    messages = sum(result.messages for result in results)
    lost = "nothing" if not failed else f"in {failed}, which say so"
    more = f", not played {skipped}" if skipped else ""
    return f"**{len(results)} faults, {messages:,} hostile messages: survived {survived}{more}; lost: {lost}.**"


def render(table: Sequence[Row], results: dict[str, Result], machine: Machine, command: str, took_s: float) -> str:
    """What stands between the markers."""
    of_rows = [results[row.name] for row in table]
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(cells(row, result)) + " |" for row, result in zip(table, of_rows, strict=True)]
    busy = f" The machine was busy (load {machine.load_1m:g})." if machine.is_busy else ""
    how = f"`{command}` on {machine.date} UTC, in {took_s / 60:.0f} minutes: {machine}.{busy}"
    return "\n".join([figures(of_rows), "", how, "", *lines, ""])


def parse_rows(page: str) -> list[tuple[str, ...]]:
    """Part, fault, moment and what must hold of each row that stands in the page."""
    between = page.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in between.splitlines() if line.startswith("| ")][1:]
    return [tuple(line.strip("| ").split(" | ")[:4]) for line in lines]
