"""One thread that writes into the run directory, so that a file system that stops answering stops nothing else.

Ranks hang on dead file systems, and the run directory often lies on the same one: whoever is to explain that must not
hang with them. As long as the disk answers, `do` returns when the work is done: what has been acknowledged is written.
Once something has taken longer than `patience_s`, work is queued without waiting, in order and bounded, until the disk
answers again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

Work = Callable[[], object]

PATIENCE_S = 2.0
MOST = 10_000
"""Pieces of work that wait for a disk; what comes after them is dropped, and counted."""


class Scribe:
    """Does work in order, on a thread of its own."""

    def __init__(self, patience_s: float = PATIENCE_S, most: int = MOST) -> None:
        self._patience_s = patience_s
        self._queue: queue.Queue[Work | None] = queue.Queue(most)
        self._waiting: threading.Event | None = None
        """Of the work that took too long."""
        self.dropped = 0
        # A daemon: a thread that the kernel does not let go must not keep the interpreter from ending.
        self._thread = threading.Thread(target=self._run, name="guardrun-scribe", daemon=True)
        self._thread.start()

    @property
    def is_stuck(self) -> bool:
        """Whether something has been written for longer than patience_s, and is not done yet."""
        if self._waiting is not None and self._waiting.is_set():
            self._waiting = None
        return self._waiting is not None

    def put(self, work: Work) -> bool:
        """Have work done some time; False where too much is waiting already. What it raises is lost."""
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def do(self, work: Work) -> bool:
        """Have work done, and wait for that; False where it has not been yet, or never will be."""
        done = threading.Event()

        def job() -> None:
            try:
                work()
            finally:
                done.set()

        was_stuck = self.is_stuck
        if not self.put(job) or was_stuck:
            return False
        if done.wait(self._patience_s):
            return True
        self._waiting = done
        return False

    def close(self) -> bool:
        """End the thread once all is written; False where it has not been within patience_s."""
        try:
            self._queue.put(None, timeout=0 if self.is_stuck else self._patience_s)
        except queue.Full:
            return False
        self._thread.join(0 if self.is_stuck else self._patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception:  # The work's own trouble: it says so itself, or nobody wants to know.
                self.dropped += 1
