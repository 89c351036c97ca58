"""Readouts between the runner's thread, somebody's loop and the judges: bounded, with a descriptor to wait on."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable

from guardrun.supervisor.base.log import log
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Judge, Readout

# Readout mailbox ----------------------------------------------------------------------------------------------------
# Readouts on their way from the runner's thread to somebody's loop: bounded, with a descriptor to wait on.


MAX_READOUTS = 4096
"""The oldest go first; a loop that is so far behind has other troubles."""


class Mailbox:
    """Give `put` to the runner, wait on `fileno()`, then `pop_all()`."""

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

    def pop_all(self) -> list[Readout]:
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


# Readout judging ----------------------------------------------------------------------------------------------------
# A readout before all the judges whom it concerns.


def judge_all(judges: Iterable[Judge], readout: Readout, now_s: float) -> list[Finding]:
    """What they make of it, together. A bug in one judge costs neither the others' word nor whoever asks."""
    findings: list[Finding] = []
    for judge in judges:
        if judge.sensors and readout.sensor not in judge.sensors:
            continue
        try:
            findings += judge.judge_readout(readout, now_s)
        except Exception:
            log.exception("judge_raised", judge=type(judge).__name__, sensor=readout.sensor)
    return findings
