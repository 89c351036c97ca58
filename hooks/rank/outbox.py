"""What is to be sent: filled by hooks anywhere, emptied by the hooks' thread.

Hooks run in the middle of training, in the collector's callbacks, in signal handlers: SimpleQueue is the one queue
whose put() may be interrupted by itself. It never waits; what doesn't fit is dropped and counted.
"""

from __future__ import annotations

from _queue import Empty, SimpleQueue

MAX_WAITING = 1000

FLUSH = "flush"
STOP = "stop"

Item = tuple[str, dict[str, object]]


class Outbox:
    """A bounded queue of (kind, fields)."""

    def __init__(self, is_open: bool = True) -> None:
        self._queue: SimpleQueue[Item] = SimpleQueue()
        self.is_open = is_open
        self.dropped = 0
        """Messages that could not be sent so far, whoever had to drop them."""

    def put(self, kind: str, fields: dict[str, object]) -> None:
        """Queue an item; drops it where the queue is full or closed."""
        if not self.is_open:
            return
        if self._queue.qsize() >= MAX_WAITING:
            self.dropped += 1
            return
        self._queue.put((kind, fields))

    def get(self, timeout_s: float) -> Item | None:
        """Take the next item; None when there is none for timeout_s."""
        try:
            return self._queue.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None

    def wait_for(self, kind: str, timeout_s: float) -> bool:
        """Send a FLUSH or a STOP after all else and wait, at most timeout_s, until it was done."""
        if not self.is_open:
            return False
        done: SimpleQueue[bool] = SimpleQueue()
        self._queue.put((kind, {"done": done}))
        try:
            return done.get(timeout=timeout_s)
        except Empty:
            return False
