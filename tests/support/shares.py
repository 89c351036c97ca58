"""A fresh checkout's test modules are rewritten once, not once a worker.

pytest rewrites the assertions of each test module that it imports, which takes 25 ms of a CPU a module, and keeps the
result beside it. Workers collect the same modules in the same order at the same time: so in a fresh checkout each would
rewrite them all. Here each imports a share of them before it collects, and finds the others' done.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_below(arguments: list[str]) -> list[str]:
    """Names of the test modules that pytest's arguments name, in a fixed order."""
    paths: set[Path] = set()
    for argument in arguments:
        path = (ROOT / argument.partition("::")[0]).resolve()
        paths.update(path.rglob("test_*.py") if path.is_dir() else [path])
    found = sorted(path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT) and path.suffix == ".py")
    return [".".join(path.with_suffix("").parts) for path in found]


class Shares:
    """The plugin, in a worker of pytest-xdist."""

    def __init__(self, number: int, workers: int) -> None:
        self._number, self._workers = number, workers

    @pytest.hookimpl
    def pytest_collection(self, session: pytest.Session) -> None:
        """Once pytest's rewriting is in place, before it collects."""
        for module in modules_below(session.config.args)[self._number :: self._workers]:
            with contextlib.suppress(Exception):  # the collection says what is wrong with it
                importlib.import_module(module)


def register(config: pytest.Config) -> None:
    """In a worker; where one process runs all tests there is nothing to share."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        config.pluginmanager.register(Shares(number, worker["workercount"]))
