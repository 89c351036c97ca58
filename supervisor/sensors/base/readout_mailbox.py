"""Readouts on their way from the runner's thread to somebody's loop: bounded, with a descriptor to wait on."""

from __future__ import annotations

import os
import threading
from collections import deque

from guardrun.supervisor.health.base.readings import Readout

MAX_READOUTS = 4096
"""The oldest go first; a loop that is so far behind has other troubles."""


class Mailbox:
    """Give `put` to the runner, wait on `fileno()`, then `take()`."""

    def __init__(self, limit: int = MAX_READOUTS) -> None:
        self._lock = threading.Lock()
        self._readouts: deque[Readout] = deque(maxlen=limit)
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.dropped = 0
        """How many were lost because nobody took them."""

    def fileno(self) -> int:
        """Readable while readouts lie here."""
        return self._reader

    def put(self, readout: Readout) -> None:
        """Leave a readout; any thread may. After close() it is dropped."""
        with self._lock:
            if self._writer < 0:
                return
            if len(self._readouts) == self._readouts.maxlen:
                self.dropped += 1
            is_first = not self._readouts
            self._readouts.append(readout)
            if is_first:
                os.write(self._writer, b"\0")

    def take(self) -> list[Readout]:
        """All that lies here, the oldest first; empty where there is nothing."""
        with self._lock:
            if not self._readouts:
                return []
            os.read(self._reader, 64)
            readouts = list(self._readouts)
            self._readouts.clear()
            return readouts

    def close(self) -> None:
        """Drop what lies here; later `put`s are dropped, too. May be called twice."""
        with self._lock:
            if self._writer < 0:
                return
            os.close(self._reader)
            os.close(self._writer)
            self._reader = self._writer = -1
            self._readouts.clear()
