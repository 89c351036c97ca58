"""What one user may have of the agent: frames, bytes and CPU time, each so much a second, with a burst.

An honest supervisor says three things when it connects and one at its end; a guardctl says two. The bursts let a user's
64 launchers begin at the same moment, and the rates are what a script that asks without a pause still gets.
"""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """So much a second, and so much at once after a rest."""

    per_s: float
    burst: float


FRAMES = Rate(200, 1000)
BYTES = Rate(1024 * 1024, 8 * 1024 * 1024)
BUSY_S = Rate(0.05, 0.5)
"""CPU seconds: the unit gives the agent a fifth of a core, and the node's sensors come first. How long the loop has had
to wait for them is others' doing."""
CONNECTIONS = Rate(20, 200)


class Bucket:
    """What is left of a rate. It may be overdrawn by one piece; the next has to wait for that."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._at_s = now_s

    def consume(self, amount: float, now_s: float) -> None:
        """Take an amount, also where less is left: `wait_s` then says how long the debt lasts."""
        self._left = min(self._rate.burst, self._left + self._rate.per_s * max(0.0, now_s - self._at_s)) - amount
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Until something may be taken again; 0: now."""
        self.consume(0.0, now_s)
        return max(0.0, -self._left / self._rate.per_s)


class Allowance:
    """One user's."""

    def __init__(self, now_s: float) -> None:
        self.frames = Bucket(FRAMES, now_s)
        self.bytes = Bucket(BYTES, now_s)
        self.busy_s = Bucket(BUSY_S, now_s)
        self.connections = Bucket(CONNECTIONS, now_s)
        self.seen_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Until the user's next frame may be read."""
        return max(bucket.wait_s(now_s) for bucket in (self.frames, self.bytes, self.busy_s))

    def is_fresh(self, now_s: float) -> bool:
        """Whether nothing is owed and nothing taken lately: forgetting it changes nothing."""
        return now_s - self.seen_s > 60.0 and self.wait_s(now_s) == 0.0
