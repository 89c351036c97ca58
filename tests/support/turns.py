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
FIRST = tuple(f"tests/{folder}/" for folder in ("edge", "slurm", "fleet", "agent", "realworld", "torchrun", "gym"))
"""Folders with files that take minutes: started first, so that no worker is left alone with one in the end."""


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
    """FIRST's first, and of these the files with tests that want to be alone: in the beginning nobody is waited for.

    Otherwise as they are: in random order.
    """
    for_one = {item.path for item in items if item.get_closest_marker(ALONE)}
    items.sort(key=lambda item: (not item.nodeid.startswith(FIRST), item.path not in for_one))
