"""Whether a row of lows rises on and on, how fast, and between which bounds.

By Theil and Sen: the median of the slopes of all pairs of points, which a third of outliers does not move (P. K. Sen,
Estimates of the regression coefficient based on Kendall's tau, JASA 63, 1968, which has the bounds, too).
A rise is only taken for one where the bounds are above zero, and no single step is half of it: what came at once is a
buffer, an evaluation, a copy for a save.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from guardrun.supervisor.engine.observation.window_lows import KEPT, LASTS, Lows

ROWS = (KEPT, 20, 16, 14, 12, 11, 10, 9, 8, 7, LASTS + 1)
"""Lengths of rows that are tried, the longest first."""
SURE = 1.645
"""Deviations: nine of ten true slopes lie between the bounds."""
JUMP = 0.5
"""Share of the rise that a single step makes at most."""


class Slope(NamedTuple):
    """In units a window."""

    usual: float
    least: float
    most: float


class Trend(NamedTuple):
    """A rise that goes on."""

    slope: Slope
    """Of late: of the newer half of the row."""
    windows: int
    """How many windows have shown it."""
    risen: int
    """How much higher it is than in any window before."""
    early: float
    """Units a window in the older half, between the medians of the row's thirds."""
    late: float
    """Likewise in the newer half."""


def find_trend(lows: Lows, least: float) -> Trend | None:
    """The longest rise at the end of a row of lows, if it is `least` higher than any before; None where there is none.

    >>> find_trend(Lows(closed=[0, 10, 20, 30, 40, 50]), 1).slope
    Slope(usual=10.0, least=10.0, most=10.0)
    """
    for length in ROWS:
        start = len(lows.closed) - length
        if start < 0 or lows.risen(start) < least:
            continue
        row = lows.closed[start:]
        third = length // 3
        if not _is_gradual(row):
            continue
        whole = sen_slope(row)
        if whole.least <= 0:
            continue
        late = sen_slope(row[-max(LASTS + 1, length // 2) :])
        usual = late.usual if late.usual > 0 else whole.usual
        least = min(usual, whole.least, late.least if late.least > 0 else usual)
        first, middle, last = median(row[:third]), median(row[third:-third]), median(row[-third:])
        apart = (length - third) / 2
        before, after = (middle - first) / apart, (last - middle) / apart
        # What gets faster is as much faster again by now: the newer half's middle is as far from here as the older's.
        now = after * after / before if after > before > 0 else 0.0
        slope = Slope(usual, least, max(whole.most, late.most, now))
        return Trend(slope, length, lows.risen(start), before, after)
    return None


def sen_slope(row: Sequence[int]) -> Slope:
    """Of at least three points, one a window."""
    count = len(row)
    slopes = sorted(
        [(row[place + apart] - row[place]) / apart for apart in range(1, count) for place in range(count - apart)]
    )
    off = SURE * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    place = max(0, int((len(slopes) - off) / 2) - 1)
    return Slope(median(slopes), slopes[place], slopes[-1 - place])


def to_come(early: float, late: float, apart: float) -> float:
    """How much is still to come at most, where each window adds less than the one before; infinite where it doesn't.

    early and late: units a window in two halves whose middles are so many windows apart. All that is to come is then a
    geometric series.
    """
    if early <= 0 or late >= early:
        return math.inf
    if late <= 0:
        return 0.0
    factor = (late / early) ** (1 / apart)
    return late * factor / (1 - factor) if factor < 1 else math.inf


def _is_gradual(row: Sequence[int]) -> bool:
    steps = [after - before for before, after in pairwise(row)]
    return max(steps) <= JUMP * (row[-1] - row[0])
