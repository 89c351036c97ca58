"""Tests side by side, in the workers of pytest-xdist: how many compute at once.

Most tests wait most of their time, for processes that they have started: there are several workers to a CPU, so that
none is without work meanwhile. Those that compute themselves (COMPUTING) take a seat each, and there are as many as
there are CPUs. Nobody has the machine to itself: what a test measures is CPU time, or what comes before what.
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

SEATS = len(os.sched_getaffinity(0))
SEAT_POLL_S = 0.003
COMPUTING = (
    "base", "bench", "checkpoints", "config", "daemon", "engine", "node", "realworld", "report", "rundir", "saving",
    "sim",
)  # fmt: skip
"""Folders whose tests take a seat."""


def run_folder(run_uid: str) -> Path:
    """Of the locks of one run of pytest."""
    return Path(tempfile.gettempdir()) / f"guardrun-tests-{run_uid}"


def remove_folder(run_uid: str) -> None:
    shutil.rmtree(run_folder(run_uid), ignore_errors=True)


def computes(nodeid: str) -> bool:
    """Say whether a test takes a seat."""
    return nodeid.removeprefix("tests/").partition("/")[0] in COMPUTING


@contextmanager
def seat(folder: Path, seats: int = SEATS) -> Iterator[None]:
    """Wait for the first that is free, in the order of asking."""
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as held:
        places = [held.enter_context(_opened(folder / f"seat-{number}")) for number in range(seats)]
        with _opened(folder / "queue") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            while not any(_try_lock(place) for place in places):
                time.sleep(SEAT_POLL_S)
        yield


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
