"""Tests side by side, in the workers of pytest-xdist: who waits for whom.

All take turns by two locks: `room`, which any number share and a test marked `alone` has to itself, and `gate`, through
which everybody must to get there, so that one who wants to be alone is not kept waiting by ever new ones.

And each that computes (COMPUTING) holds one of as many seats as there are CPUs. The others wait most of their time, for
processes that they have started; there are several workers to a CPU, so that none is without work meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.spread import unit_of, weigh

ALONE = "alone"
SEATS = len(os.sched_getaffinity(0))
SEAT_POLL_S = 0.003
COMPUTING = ("core", "sim", "checkpoints", "render", "config", "supervisor", "bench", "realworld")
"""Folders whose tests take a seat each; those of others wait for processes most of the time."""


def run_folder(run_uid: str) -> Path:
    """Of the locks of one run of pytest."""
    return Path(tempfile.gettempdir()) / f"guardrun-tests-{run_uid}"


def remove_folder(run_uid: str) -> None:
    shutil.rmtree(run_folder(run_uid), ignore_errors=True)


@contextmanager
def turn(folder: Path, *, is_alone: bool = False, is_waiting: bool = False, seats: int = SEATS) -> Iterator[None]:
    """Wait until this test may run."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        if not is_alone and not is_waiting:
            _take_seat(held, folder, seats)
        room = held.enter_context(_opened(folder / "room"))
        with _opened(folder / "gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


def computes(nodeid: str) -> bool:
    """Say whether a test takes a seat."""
    return nodeid.removeprefix("tests/").partition("/")[0] in COMPUTING


class Turns:
    """Those of one worker's tests. Tests that want to be alone, one after the other, are so together."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._is_alone = False

    def begin(self, folder: Path, *, is_alone: bool, is_waiting: bool) -> None:
        """Wait until a test may run."""
        if not self._is_alone:
            self._held.enter_context(turn(folder, is_alone=is_alone, is_waiting=is_waiting))
            self._is_alone = is_alone

    def end(self, *, is_next_alone: bool) -> None:
        """Let others go on, where this worker's next test is not as this one."""
        if not (self._is_alone and is_next_alone):
            self._held.close()
            self._is_alone = False


OWN = Turns()
"""This process's."""


def _take_seat(held: ExitStack, folder: Path, seats: int) -> None:
    """The first that is free, in the order of asking."""
    places = [held.enter_context(_opened(folder / f"seat-{number}")) for number in range(seats)]
    with _opened(folder / "queue") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        while not any(_try_lock(place) for place in places):
            time.sleep(SEAT_POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A lock to be taken, let go in the end. Closed on exec, so that no program which a test starts holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        # A child that was forked, and never ran a program, has it open, too: closing alone would not do.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def sort_for_workers(items: list[pytest.Item]) -> None:
    """Tests that want to be alone first: in the beginning nobody waits for others to end.

    Then the units that take longest; otherwise as they are, in random order.
    """
    alone = {unit_of(item.nodeid) for item in items if item.get_closest_marker(ALONE)}
    weights = weigh(item.nodeid for item in items)

    def rank(item: pytest.Item) -> tuple[bool, bool, float, str]:
        unit = unit_of(item.nodeid)
        return (unit not in alone, not item.get_closest_marker(ALONE), -weights[unit], unit if weights[unit] else "")

    items.sort(key=rank)
