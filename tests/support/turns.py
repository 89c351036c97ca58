"""Tests side by side, in the workers of pytest-xdist: who waits for whom.

All take turns by two locks: `room`, which any number share and a test marked `alone` has to itself, and `gate`, through
which everybody must to get there, so that one who wants to be alone is not kept waiting by ever new ones.

And each holds one of as many seats as there are CPUs, but for those marked `idle`, which wait nearly all the time: with
a worker more than there are CPUs, none of these is without work meanwhile, nor has any more to do than without it.
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

ALONE, IDLE = "alone", "idle"
SEATS = len(os.sched_getaffinity(0))
SEAT_POLL_S = 0.003
EARLY = (
    ("edge", "slurm", "fleet", "agent", "realworld", "gym"),
    ("torchrun", "hooks", "launcher", "preflight", "diagnose", "sim"),
)
"""Folders with files that take minutes, and with such that take most of one: no worker is left with one in the end."""


def run_folder(run_uid: str) -> Path:
    """Of the locks of one run of pytest."""
    return Path(tempfile.gettempdir()) / f"guardrun-tests-{run_uid}"


def remove_folder(run_uid: str) -> None:
    shutil.rmtree(run_folder(run_uid), ignore_errors=True)


@contextmanager
def turn(folder: Path, *, is_alone: bool = False, is_idle: bool = False, seats: int = SEATS) -> Iterator[None]:
    """Wait until this test may run."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        if not is_alone and not is_idle:
            _take_seat(held, folder, seats)
        room = held.enter_context(_opened(folder / "room"))
        with _opened(folder / "gate") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


class Turns:
    """Those of one worker's tests. Tests that want to be alone, one after the other, are so together."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._is_alone = False

    def begin(self, folder: Path, *, is_alone: bool, is_idle: bool) -> None:
        """Wait until a test may run."""
        if not self._is_alone:
            self._held.enter_context(turn(folder, is_alone=is_alone, is_idle=is_idle))
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
    """Files with tests that want to be alone, these tests first: in the beginning nobody waits for others to end.

    Then what is to be started early; otherwise as they are, in random order.
    """
    alone = {item for item in items if item.get_closest_marker(ALONE)}
    of_alone = {item.path for item in alone}
    items.sort(key=lambda item: (item.path not in of_alone, item not in alone, _turn_of(item.nodeid)))


def _turn_of(nodeid: str) -> int:
    folder = nodeid.removeprefix("tests/").partition("/")[0]
    return next((number for number, folders in enumerate(EARLY) if folder in folders), len(EARLY))
