"""The lowest of what a rank was seen to hold, window by window: what stays, without what comes and goes.

For whatever looks for growth without end (engine/detectors/descriptor_leak.py, host_leak.py). Windows are of several
lengths, so that what is fast is found in minutes, and what is slow in days.
"""

from __future__ import annotations

import msgspec

LENGTHS = (1, 4, 16, 64, 256)
"""Of windows, in those of the shortest: one of two minutes makes windows of up to eight hours."""
LASTS = 5
KEPT = 24


class Lows(msgspec.Struct, array_like=True):
    """The lowest counts of windows of one length, one after the other."""

    index: int = -2
    """Which window it is, in lengths since the engine's time began; -2: none yet."""
    low: int = 0
    """Of that one, so far."""
    is_whole: bool = False
    """It was counted from its beginning on; a row's first one was not, and is left out."""
    closed: list[int] = []
    """Of those before, the last one last; a window without a count ends the row."""
    record: int = 0
    """The highest of those that are kept no longer."""

    def add(self, index: int, count: int) -> bool:
        """Take a count in; True where a window has been closed by it."""
        if index == self.index:
            self.low = min(self.low, count)
            return False
        is_closed, is_next = self.is_whole, index == self.index + 1
        if is_closed:
            self.closed.append(self.low)
        dropped = self.closed[:-KEPT] if is_next else self.closed
        self.record = max([self.record, *dropped])
        self.closed = self.closed[len(dropped) :]
        self.index, self.low, self.is_whole = index, count, is_next
        return is_closed

    def risen(self, start: int) -> int:
        """How much higher the last low is than any up to the one at `start` of those closed; below 0: it is lower.

        What went up that far once, and down, may do so again.
        """
        return self.closed[-1] - max([self.record, *self.closed[: start + 1]])

    def has_stopped(self, slack: int = 0) -> bool:
        """Whether the last LASTS windows have come to no higher count, or to one that is higher by `slack` at most."""
        return len(self.closed) > LASTS and max(self.closed[-LASTS:]) <= self.closed[-LASTS - 1] + slack
