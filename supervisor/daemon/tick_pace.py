"""How often the engine is ticked. Pure.

A deadline that is still due after it was served is a bug of ours, and so is a tick that raises. Neither may keep the
loop from everything else, nor fill a disk with what the journal notes of it.
"""

from __future__ import annotations

STILL_DUE_S = 0.05
"""Between two ticks of which the first did not move the deadline."""
FAILED_S = 0.2
"""After a tick that raised; doubles with each in a row."""
FAILED_MOST_S = 30.0


class Pace:
    """Says when the next tick may be. All times are the engine's seconds."""

    def __init__(self) -> None:
        self._not_before_s = 0.0
        self._failures = 0

    def due_s(self, deadline_s: float | None) -> float | None:
        """When to tick for this deadline of the engine's."""
        return None if deadline_s is None else max(deadline_s, self._not_before_s)

    def ticked(self, now_s: float, has_failed: bool, deadline_s: float | None) -> None:
        """Note a tick, and the engine's deadline after it."""
        if has_failed:
            self._not_before_s = now_s + min(FAILED_S * 2.0**self._failures, FAILED_MOST_S)
            self._failures = min(self._failures + 1, 20)
            return
        self._failures = 0
        self._not_before_s = now_s + STILL_DUE_S if deadline_s is not None and deadline_s <= now_s else 0.0
