"""How far apart progress comes in this run, learned as it goes.

A histogram with logarithmic bins: constant memory, serialisable, and a quantile that is right to 12%.
"""

from __future__ import annotations

import math

import msgspec

_FIRST_S = 0.05
_RATIO = 1.25
_BINS = 60  # up to 0.05 * 1.25**60 s, nine hours

QUANTILE = 0.999
FACTOR = 3.0
"""Suspicion begins at FACTOR times the 99.9th percentile (max(k·p99.9, …) with a floor, as fail-slow papers report)."""
ENOUGH = 20
"""Gaps seen before the quantile is believed; before that the longest counts as it."""


class Gaps(msgspec.Struct):
    """Learned gaps between two advances of the whole job, in seconds."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * _BINS)
    total: int = 0
    longest_s: float = 0.0

    def add(self, gap_s: float) -> None:
        """Learn one gap. Negative ones (clock conversions that disagree by a tick) count as zero."""
        gap_s = max(gap_s, 0.0)
        self.counts[_bin(gap_s)] += 1
        self.total += 1
        self.longest_s = max(self.longest_s, gap_s)

    def quantile_s(self, share: float) -> float:
        """Upper edge of the bin that holds the quantile; 0.0 where nothing has been learned."""
        if not self.total:
            return 0.0
        wanted = math.ceil(self.total * share)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if seen >= wanted:
                return float(min(_FIRST_S * _RATIO**index, self.longest_s))
        return self.longest_s

    def suspicious_after_s(self, floor_s: float) -> float:
        """Silence after which the job deserves a look; at least floor_s."""
        typical_s = self.quantile_s(QUANTILE) if self.total >= ENOUGH else self.longest_s
        return max(floor_s, FACTOR * typical_s)


def _bin(gap_s: float) -> int:
    if gap_s <= _FIRST_S:
        return 0
    return min(_BINS - 1, math.ceil(math.log(gap_s / _FIRST_S, _RATIO)))
