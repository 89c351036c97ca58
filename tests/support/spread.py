"""How tests are given out to pytest-xdist's workers: in which units, and which first.

A unit is what one worker runs together: a test of its own where it is a story that takes seconds; the tests of a file
that share a module's fixture, or that take next to no time; the tests of a Slurm (`SLURMS` of them run at once). Units
go to whichever worker is free, those that take longest first, so that no worker is left with one in the end.

Most long tests wait, for patience to end or for others to start, and some compute all the time. As many workers as
there are CPUs take those that compute, the others those that wait, and when either are done, all take the rest: so the
CPUs have work from the beginning to the end, and no more than they can do.

What tests take stands in durations.json, seconds and CPU seconds of those that take more than `WRITTEN_S`: `make test
PYTEST_ARGS=--write-durations` writes it anew. It changes the order, nothing else: a test that is not there is short.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.turns import SEATS

ROOT = Path(__file__).parents[2]
DURATIONS = Path(__file__).with_name("durations.json")
WRITTEN_S = 2.0
WAITING_SHARE = 0.4
"""Of its time on a CPU, at most, for a unit that waits. What is not known computes: it is short."""
COMPUTING_WORKERS = SEATS
APART = ("tests/faults/test_faults.py",)
"""Files each of whose tests takes seconds, also those that are only played now and then, and so not known."""
SLURMS = 2
"""Tests of Slurm wait nearly all the time; a Slurm of their own takes four seconds to start."""


class Took(NamedTuple):
    """What a test, or a unit, took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of its processes, and of all that ended below them."""


@cache
def read_durations() -> dict[str, Took]:
    """By test, as last written."""
    found = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return {test: Took(*took) for test, took in found.items()}


def write_durations(durations: Mapping[str, Took]) -> None:
    """Keep what is worth to be known."""
    lines = [
        f"{json.dumps(test)}: [{took.wall_s:.1f}, {took.cpu_s:.1f}]"
        for test, took in sorted(durations.items())
        if took.wall_s >= WRITTEN_S
    ]
    DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@cache
def units_of_slurm() -> dict[str, str]:
    """Per file whose tests share a Slurm, the unit that it belongs to; about equal in what they take."""
    files = {
        str(path.relative_to(ROOT)): 0.0
        for path in sorted((ROOT / "tests" / "slurm").rglob("test_*.py"))
        if "slurm_lab" in path.read_text()
    }
    for test, took in read_durations().items():
        path = test.partition("::")[0]
        if path in files:
            files[path] += took.wall_s
    full = [0.0] * SLURMS
    units = {}
    for path, seconds in sorted(files.items(), key=lambda one: -one[1]):
        least = full.index(min(full))
        full[least] += seconds
        units[path] = f"slurm {least + 1}"
    return units


@cache
def is_shared(path: str) -> bool:
    """Say whether the tests of a file have a fixture of the module's in common."""
    text = (ROOT / path).read_text()
    return 'scope="module"' in text


def unit_of(test: str) -> str:
    """The unit that a test (its node id) belongs to."""
    path = test.partition("::")[0]
    slurm = units_of_slurm().get(path)
    if slurm is not None:
        return slurm
    is_known = test in read_durations() or path in APART
    return test if is_known and not is_shared(path) else path


def order(tests: Sequence[str]) -> list[str]:
    """The same tests, by units, those that take longest first; the others stay as they are."""
    weights: dict[str, float] = {}
    for test in tests:
        unit = unit_of(test)
        weights[unit] = weights.get(unit, 0.0) + read_durations().get(test, Took()).wall_s
    return sorted(tests, key=lambda test: (-weights[unit_of(test)], unit_of(test) if weights[unit_of(test)] else ""))


def waits(tests: Iterable[str]) -> bool:
    """Say whether the tests of a unit mostly wait."""
    took = [read_durations().get(test, Took()) for test in tests]
    wall_s = sum(one.wall_s for one in took)
    return wall_s > 0 and sum(one.cpu_s for one in took) < WAITING_SHARE * wall_s


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """pytest-xdist's, with these units: the first workers take those that compute, the others those that wait."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_waiting = self.nodes.index(node) >= COMPUTING_WORKERS
        for unit, tests in self.workqueue.items():
            if waits(tests) == is_waiting:
                self.workqueue.move_to_end(unit, last=False)
                break
        super()._assign_work_unit(node)


class Spread:
    """The plugin: in the process that gives tests out, and in its workers."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """In a worker: the order is otherwise the random one, and the same in all."""
        if hasattr(config, "workerinput"):
            place = {test: number for number, test in enumerate(order([item.nodeid for item in items]))}
            items.sort(key=lambda item: place[item.nodeid])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> UnitScheduling:
        return UnitScheduling(config, log)
