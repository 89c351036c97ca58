"""Where the time of a run went: goodput, and what was lost to what."""

from __future__ import annotations

import msgspec

TRAINING = "training"
"""Getting further than ever before."""
DETECTING = "detecting"
"""From the last progress to the verdict, or to the end of an attempt that has none."""
STOPPING = "stopping"
"""From the verdict until nothing of the attempt was alive."""
STARTING = "starting"
"""From then, or from the run's beginning, to the first progress."""
REDOING = "redoing"
"""Repeating steps that an earlier attempt had done."""
OTHER = "other"
"""Frozen, hung and left so (held, `act = false`), not running (between a guardrun that died and the one that went on),
clearing up."""


class Ledger(msgspec.Struct):
    """Seconds per use. One use is current at any moment; `switch` books up to now."""

    use: str = STARTING
    since_s: float = 0.0
    spent_s: dict[str, float] = {}

    def switch(self, use: str, now_s: float) -> None:
        """Book the time until now to the current use, and begin another."""
        self._book(self.use, now_s - self.since_s)
        self.use, self.since_s = use, max(now_s, self.since_s)

    def reclassify(self, use: str, began_s: float, now_s: float) -> None:
        """Book what the current use has had since began_s to another use instead (detection, known afterwards)."""
        began_s = min(max(began_s, self.since_s), now_s)
        self._book(self.use, began_s - self.since_s)
        self._book(use, now_s - began_s)
        self.since_s = now_s

    def goodput(self, now_s: float) -> float:
        """Share of the time until now spent on getting further, 0 to 1."""
        wall_s = sum(self.spent_s.values()) + max(now_s - self.since_s, 0.0)
        return self.total(TRAINING, now_s) / wall_s if wall_s > 0 else 0.0

    def total(self, use: str, now_s: float) -> float:
        """Seconds of one use until now."""
        running = now_s - self.since_s if use == self.use else 0.0
        return self.spent_s.get(use, 0.0) + max(running, 0.0)

    def lost_s(self, now_s: float) -> dict[str, float]:
        """Seconds per use that is not training."""
        return {use: round(self.total(use, now_s), 3) for use in (DETECTING, STOPPING, STARTING, REDOING, OTHER)}

    def _book(self, use: str, seconds: float) -> None:
        if seconds > 0:
            self.spent_s[use] = self.spent_s.get(use, 0.0) + seconds
