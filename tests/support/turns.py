"""Tests side by side, in the workers of pytest-xdist: who waits for whom.

All take turns by two locks: `room`, which any number share and a test marked `alone` has to itself, and `gate`, through
which everybody must to get there, so that one who wants to be alone is not kept waiting by ever new ones.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALONE = "alone"
FIRST = tuple(f"tests/{folder}/" for folder in ("edge", "slurm", "fleet", "agent", "realworld", "torchrun", "gym"))
"""Folders with files that take minutes: started first, so that no worker is left alone with one in the end."""


def run_folder(run_uid: str) -> Path:
    """Of the locks of one run of pytest."""
    return Path(tempfile.gettempdir()) / f"guardrun-tests-{run_uid}"


def remove_folder(run_uid: str) -> None:
    shutil.rmtree(run_folder(run_uid), ignore_errors=True)


@contextmanager
def turn(folder: Path, *, is_alone: bool) -> Iterator[None]:
    """Wait until this test may run. Descriptors are closed on exec, so that no program which it starts holds a lock."""
    folder.mkdir(mode=0o700, exist_ok=True)
    gate, room = (os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) for name in ("gate", "room"))
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield
    finally:
        # A child that was forked, and never ran a program, has them open, too: closing alone would not do.
        fcntl.flock(room, fcntl.LOCK_UN)
        os.close(gate)
        os.close(room)


def sort_for_workers(items: list[pytest.Item]) -> None:
    """FIRST's first, otherwise as they are: in random order."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))
