"""Where the time of a run of the tests went: the report that stands at its end.

A `Meter` in each process that runs tests adds up what the tests of a file took; a `Report`, in the process that prints
(the same one with WORKERS=0), puts these together. CPU seconds are those of the test's process and of what it started:
a worker is a subreaper, so what descendants used arrives there once they have ended and were reaped.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import spread
from tests.support.processes import reap_children
from tests.support.startup_log import VARIABLE, StartupCost, StartupLog, is_installed

SLOWEST_FILES = 10
TOLD_S = 20.0
"""A test whose own part takes longer says in its docstring why. The report names one that does not; no run fails for
it, as how long a test takes is the machine's affair, too (tests/project/test_timing.py holds the recorded times to it).
"""
OUTPUT_KEY = "guardrun_timing"
SECTION = "where the time went"


@dataclass
class FileCost:
    """What the tests of one file took together, set-up and teardown included, waiting for their turn not."""

    tests: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: FileCost) -> None:
        self.tests += other.tests
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s


@dataclass
class Measured:
    """What one process, or all of them, measured."""

    files: dict[str, FileCost] = field(default_factory=dict)
    unexplained: dict[str, float] = field(default_factory=dict)
    """Test → seconds, of those that take more than TOLD_S and have no docstring."""
    durations: dict[str, spread.Took] = field(default_factory=dict)
    """By test, set-up and teardown included."""
    cpu_s: float = 0.0
    """Of all that the processes did, between tests as well."""
    workers: int = 0

    def add(self, other: Measured) -> None:
        for name, cost in other.files.items():
            self.files.setdefault(name, FileCost()).add(cost)
        self.unexplained.update(other.unexplained)
        self.durations.update(other.durations)
        self.cpu_s += other.cpu_s
        self.workers += other.workers

    def to_plain(self) -> dict[str, Any]:
        """As pytest-xdist can send it: builtin types only."""
        files = {name: [cost.tests, cost.wall_s, cost.cpu_s] for name, cost in self.files.items()}
        durations = {test: tuple(took) for test, took in self.durations.items() if took.wall_s >= spread.WRITTEN_S}
        return {"files": files, "unexplained": self.unexplained, "durations": durations, "cpu_s": self.cpu_s}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Measured:
        """What a worker sent."""
        files = {name: FileCost(*figures) for name, figures in plain["files"].items()}
        durations = {test: spread.Took(*took) for test, took in plain["durations"].items()}
        return cls(files, dict(plain["unexplained"]), durations, plain["cpu_s"], workers=1)


def used_cpu_s(*, with_children: bool = True) -> float:
    """CPU seconds of this process; with_children: and of its descendants, as far as they have ended and were reaped."""
    usages = [resource.getrusage(resource.RUSAGE_SELF)]
    if with_children:
        usages.append(resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def is_unexplained(duration_s: float, docstring: str | None) -> bool:
    """Say whether a test takes long without saying why."""
    return duration_s > TOLD_S and not (docstring or "").strip()


class Meter:
    """In a process that runs tests."""

    def __init__(self) -> None:
        self.measured = Measured()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Within the wrapper of conftest.py: it is this test's turn already."""
        reap_children()  # what a session's fixture left before is no test's
        began_s, began_cpu_s = time.monotonic(), used_cpu_s()
        try:
            return (yield)
        finally:
            reap_children()
            took = spread.Took(time.monotonic() - began_s, used_cpu_s() - began_cpu_s)
            self.measured.files.setdefault(item.nodeid.partition("::")[0], FileCost()).add(FileCost(1, *took))
            self.measured.durations[item.nodeid] = took

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        docstring = getattr(getattr(item, "obj", None), "__doc__", None)
        if call.when == "call" and is_unexplained(call.duration, docstring):
            self.measured.unexplained[item.nodeid] = call.duration
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.measured.cpu_s = used_cpu_s()
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[OUTPUT_KEY] = self.measured.to_plain()


class Report:
    """In the process that prints."""

    def __init__(self, own: Meter) -> None:
        self._own = own
        self._all = Measured()
        self._began_s = time.monotonic()
        # One run within another, as a test's: what starts meanwhile is the outer one's.
        self._log = None if VARIABLE in os.environ else StartupLog()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker of pytest-xdist has ended; one that broke down sent nothing."""
        sent = getattr(node, "workeroutput", {}).get(OUTPUT_KEY)
        if sent is not None:
            self._all.add(Measured.from_plain(sent))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Before the terminal's summary."""
        if self._all.workers:
            self._own.measured.cpu_s = used_cpu_s(with_children=False)  # each worker told of itself
        self._all.add(self._own.measured)
        if session.config.getoption("write_durations", False):
            spread.write_durations(self._all.durations)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._all.files:
            return
        startup = self._log.read() if self._log else None
        lines = report_lines(self._all, time.monotonic() - self._began_s, startup)
        if terminalreporter.config.get_verbosity() < 0 and not self._all.unexplained:
            lines = lines[:2]
        terminalreporter.section(SECTION)
        for line in lines:
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        if self._log:
            self._log.close()


def register(config: pytest.Config) -> None:
    """Measure in this process; print in the one that has the terminal."""
    meter = Meter()
    config.pluginmanager.register(meter, "guardrun-meter")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(meter), "guardrun-report")


def report_lines(measured: Measured, wall_s: float, startup: StartupCost | None) -> list[str]:
    """The report: total, share of starting up, slowest files, slow tests that do not say why.

    startup: None where another run counts it.
    """
    tests = sum(cost.tests for cost in measured.files.values())
    where = f"{measured.workers} workers" if measured.workers else "one process"
    lines = [f"{wall_s:.0f} s for {tests} tests in {where}; {measured.cpu_s:.0f} CPU seconds"]
    lines.append(startup_line(startup, measured.cpu_s))
    slowest = sorted(measured.files.items(), key=lambda pair: (-pair[1].wall_s, pair[0]))[:SLOWEST_FILES]
    lines += ["the slowest files:", "   wall s    CPU s  tests"]
    lines += [f"{cost.wall_s:9.1f}{cost.cpu_s:9.1f}{cost.tests:7d}  {name}" for name, cost in slowest]
    lines += unexplained_lines(measured.unexplained.items())
    return lines


def startup_line(startup: StartupCost | None, cpu_s: float) -> str:
    """What share starting Python and importing torch had, of interpreters that inherited the run's environment."""
    if startup is None:
        return "starting Python and importing torch: counted by the run around this one"
    if not is_installed() and not startup.starts:
        return "starting Python and importing torch: not measured (`make setup-dev` writes the .pth file for it)"
    share = startup.total_s / cpu_s if cpu_s else 0.0
    return (
        f"{share:.0%} of these was starting Python ({startup.starts} times, {startup.start_s:.0f} s) "
        f"and importing torch ({startup.torch_imports} times, {startup.torch_s:.0f} s); "
        f"{startup.without_torch} interpreters never imported it"
    )


def unexplained_lines(unexplained: Iterable[tuple[str, float]]) -> list[str]:
    """Tests that take long and do not say why, the longest first."""
    found = sorted(unexplained, key=lambda pair: -pair[1])
    if not found:
        return []
    head = f"tests of more than {TOLD_S:.0f} s whose docstring does not say why:"
    return [head, *(f"{took_s:9.1f}  {name}" for name, took_s in found)]
