"""How far apart progress comes in this run, learned as it goes.

A histogram with logarithmic bins: constant memory, serialisable, and a quantile that is right to 25%.
"""

from __future__ import annotations

import math

import msgspec

_FIRST_S = 0.5
"""Shorter gaps are all the same: no threshold depends on them. They count once in so long at most, as of many nodes
that report the same advance within a second all but the first look like one; but they do count, or the few evaluations
of a run with short steps would be all that it is known by."""
_RATIO = 1.25
_BINS = 50  # up to 0.5 * 1.25**50 s, nine hours

QUANTILE = 0.95
"""One gap in twenty may be an outlier (an evaluation, a save, a first step that compiles) and costs a look."""
FACTOR = 3.0
"""Suspicion begins at FACTOR times that quantile (fail-slow papers report max(k·quantile, …) with a floor)."""
ENOUGH = 3
"""Gaps seen before even the longest may be an outlier."""
MIN_FLOOR_S = 1.0
"""Reports come once a second: below that, every second would be suspicious."""


class Gaps(msgspec.Struct):
    """Learned gaps between two advances of the whole job, in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * _BINS)
    total: int = 0
    longest_s: float = 0.0
    typical_s: float = 0.0
    """The quantile, kept up to date: it is asked for with every report."""
    median_s: float = 0.0
    """Likewise. A first step, or an evaluation, has no say in it."""
    counted_s: float = 0.0
    """When the last one was learned."""

    def add(self, gap_s: float, at_s: float = 0.0) -> None:
        """Learn one gap, that ended at at_s; a negative one (a late report) is none."""
        if gap_s < 0 or (gap_s < _FIRST_S and at_s < self.counted_s + _FIRST_S):
            return
        self.counted_s = max(at_s, self.counted_s)
        self.counts[_bin(gap_s)] += 1
        self.total += 1
        self.longest_s = max(self.longest_s, gap_s)
        self.typical_s = self._quantile_s(min(math.ceil(self.total * QUANTILE), max(self.total - 1, ENOUGH)))
        self.median_s = self._quantile_s(math.ceil(self.total / 2))

    def _quantile_s(self, wanted: int) -> float:
        """The wanted-th shortest, as the upper edge of its bin; where there are fewer, the longest."""
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= wanted:
                return float(min(_FIRST_S * _RATIO**index, self.longest_s))
        return self.longest_s

    def suspicious_after_s(self, floor_s: float) -> float:
        """Silence after which the job deserves a look; at least floor_s."""
        return max(floor_s, MIN_FLOOR_S, FACTOR * self.typical_s)


def _bin(gap_s: float) -> int:
    return min(_BINS - 1, math.ceil(math.log(max(gap_s, _FIRST_S) / _FIRST_S, _RATIO)))
