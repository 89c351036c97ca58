"""When guardrun itself pauses a process, for native frames: counted, and one process at a time.

A look that meets such a pause sees a process that a debugger has stopped. The count tells it from one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_PROCESSES = 4096


class Pauses:
    """Who may be paused just now, and how often it has been."""

    def __init__(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._counts: Counter[int] = Counter()
        self._open: Counter[int] = Counter()

    def begin(self, pid: int) -> None:
        """From now on it may be paused."""
        with self._lock:
            if len(self._counts) >= _MOST_PROCESSES:
                self._counts = Counter({each: self._counts[each] for each in self._open})
            self._counts[pid] += not self._open[pid]
            self._open[pid] += 1

    def end(self, pid: int) -> None:
        """It no longer is, unless somebody else has begun as well."""
        with self._lock:
            self._open[pid] -= 1
            if not self._open[pid]:
                del self._open[pid]
                self._counts[pid] += 1

    @contextmanager
    def turn(self, pid: int) -> Iterator[None]:
        """Pause nobody else meanwhile; it ends what has begun."""
        try:
            with self._turn:
                yield
        finally:
            self.end(pid)

    def count(self, pid: int) -> int:
        """How often a process has begun and ceased to be paused: odd while it may be."""
        with self._lock:
            return self._counts[pid]

    def count_since(self, pid: int, before: int) -> int:
        """The same of a time that began with that count: odd if it may have been paused anywhere in it."""
        now = self.count(pid)
        return now if now == before else before | 1


PAUSES = Pauses()
