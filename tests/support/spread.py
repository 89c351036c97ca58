"""How tests are given out to pytest-xdist's workers: in which units, and which first.

A unit is what one worker runs together: a test of its own where it is a story that takes seconds; the tests of a file
that share a module's fixture, or that take next to no time; the tests of a Slurm (`SLURMS` of them run at once). Units
go to whichever worker is free, those that take longest first, so that no worker is left with one in the end.

What tests take stands in durations.json, seconds of those that take more than `WRITTEN_S`: `make test
PYTEST_ARGS=--write-durations` writes it anew. It changes the order, nothing else: a test that is not there is short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
DURATIONS = Path(__file__).with_name("durations.json")
WRITTEN_S = 2.0
SLURMS = 2
"""Tests of Slurm wait nearly all the time; a Slurm of their own takes four seconds to start."""


@cache
def read_durations() -> dict[str, float]:
    """Seconds by test, as last written."""
    found: dict[str, float] = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return found


def write_durations(durations: Mapping[str, float]) -> None:
    """Keep what is worth to be known."""
    kept = {test: round(seconds, 1) for test, seconds in sorted(durations.items()) if seconds >= WRITTEN_S}
    DURATIONS.write_text(json.dumps(kept, indent=1) + "\n")


@cache
def units_of_slurm() -> dict[str, str]:
    """Per file whose tests share a Slurm, the unit that it belongs to; about equal in what they take."""
    files = {
        f"tests/slurm/{path.name}": 0.0
        for path in sorted((ROOT / "tests" / "slurm").glob("test_*.py"))
        if "slurm_lab" in path.read_text()
    }
    for test, seconds in read_durations().items():
        path = test.partition("::")[0]
        if path in files:
            files[path] += seconds
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
    return test if test in read_durations() and not is_shared(path) else path


def order(tests: Sequence[str]) -> list[str]:
    """The same tests, by units, those that take longest first; the others stay as they are."""
    durations = read_durations()
    weights: dict[str, float] = {}
    for test in tests:
        unit = unit_of(test)
        weights[unit] = weights.get(unit, 0.0) + durations.get(test, 0.0)
    return sorted(tests, key=lambda test: (-weights[unit_of(test)], unit_of(test) if weights[unit_of(test)] else ""))


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """pytest-xdist's, with these units."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


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
