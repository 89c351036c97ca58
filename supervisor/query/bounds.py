"""What a query may take, and what holds it to that where SQLite alone does not."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from guardrun.supervisor.query.table import Cell


class Bounds(NamedTuple):
    """What one query may take."""

    rows: int = 10_000
    seconds: float = 10.0
    memory_bytes: int = 512 << 20


class RefusedError(Exception):
    """It is no query, or none that is allowed: the user's mistake, in one sentence."""


class FailedError(Exception):
    """It was run, and came to no end, or SQLite could not; in one sentence."""


class Answer(NamedTuple):
    """What a query gives."""

    columns: list[str]
    rows: list[tuple[Cell | bytes, ...]]
    is_cut: bool
    """There are more rows."""


class Watchdog:
    """Ends the process where a query cannot be interrupted: its time is up, and it is inside of one endless call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer = threading.Timer(seconds, self._bite)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def _bite(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(
                f"guardctl: the query has run for {self._seconds:.0f} s, inside of one call of SQLite's that can't be "
                "interrupted: guardctl ends\n"
            )
            sys.stderr.flush()
        os._exit(1)


@contextmanager
def bound_process(most: int) -> Iterator[None]:
    """Let this process have so many bytes more than it has, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", "rb") as file:
        wanted = int(file.read().split()[0]) * resource.getpagesize() + most
    if before[0] != resource.RLIM_INFINITY:
        wanted = min(before[0], wanted)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
