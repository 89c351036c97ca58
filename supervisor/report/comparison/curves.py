"""Two runs' values of one kind, step by step: from where on do they differ, and by more than they scatter? Pure.

Two questions are asked of a loss or a norm:

- Where both have values of single steps: up to which step are they equal to the last bit? Runs of the same code, data
  and seed are, where nothing in them is nondeterministic: the first step that is not is where something differed.
- Up to which step do they differ by no more than noise? The steps that both have are cut into stretches, and each run's
  median of a stretch is held against the other's; where both have the same steps, the median of their differences
  against 0. Noise is how far the values lie from a line through the stretch (median absolute deviation, as a standard
  deviation), and what a median of n of them is off by: SIGMAS times that, with a quarter of n, since losses of
  neighbouring steps go together. Two stretches in a row must be apart to the same side, or the last one by ALONE times
  as much; or LONG of them within the noise, but by LARGE_SHARE each. So what differs in its seed alone differs from the
  first step on, and by no more than noise.

A learning rate has no noise: it is the other run's, or lies between its neighbouring values where those are of other
steps.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from guardrun.supervisor.report.comparison.run_facts import Curve

Points = Sequence[tuple[int, float]]

SIGMAS = 4.0
STRETCHES = 32
LEAST = 8
"""Values of each run in a stretch, as a rule."""
INDEPENDENT = 4
"""So many neighbours tell as much as one."""
LEAST_SHARE = 0.002
"""Of the value: what is closer is not apart, whatever the noise."""
TREND_SHARE = 0.25
"""Of how far a value moves within a stretch: where runs' values are of other steps, medians may be that far apart."""
ALONE = 2.0
LONG, LARGE_SHARE = 10, 0.1
RATE_SHARE = 1e-6
_TO_SIGMA = 1.4826
"""Median absolute deviation → standard deviation, of a normal distribution (Rousseeuw and Croux, 1993)."""
_MEDIAN_ERROR = 1.2533
"""Standard error of a median in those of a mean, of a normal distribution: sqrt(pi / 2)."""


class CurveComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How two runs' values of one kind compare, over the steps that both have come to."""

    first_step: int
    last_step: int
    common: int
    """Steps of which both have a value of their own."""
    equal: int | None = None
    """How many of these are equal to the last bit, from the first on; None: neither can be compared like that."""
    unequal_from: int | None = None
    """The first one that is not; None: all are."""
    differs_from: int | None = None
    """The first step from which on they differ by more than noise; None: they do not."""
    is_noise_known: bool = False
    noise: float | None = None
    """Standard deviation of single values around their course, at the end; None: not known."""
    final: tuple[float, float] | None = None
    """Both values at last_step: medians of the last stretch, where there are enough."""

    @property
    def is_equal(self) -> bool:
        """Whether every common step is equal to the last bit."""
        return bool(self.equal) and self.unequal_from is None


def compare_values(a: Curve, b: Curve) -> CurveComparison | None:
    """Losses, or norms; None where there is no step that both have come to."""
    span = _span(a.points, b.points)
    if span is None:
        return None
    first, last = span
    pairs = _pairs(a.points, b.points) if a.is_single and b.is_single else []
    equal, unequal_from = _equal(pairs)
    is_paired = len(pairs) >= LEAST
    of_a: Points = [(step, one) for step, one, _ in pairs] if is_paired else _within(a.points, first, last)
    of_b: Points = [(step, other) for step, _, other in pairs] if is_paired else _within(b.points, first, last)
    of_a, of_b = _finite(of_a), _finite(of_b)
    if is_paired:  # still the same steps
        both = {step for step, _ in of_a} & {step for step, _ in of_b}
        of_a, of_b = ([point for point in points if point[0] in both] for points in (of_a, of_b))
    fewest = min(len(of_a), len(of_b))
    judged = fewest >= LEAST
    differs_from, noise, final = _apart(of_a, of_b, first, last, is_paired) if judged else (None, None, None)
    if final is None and of_a and of_b:
        final = of_a[-1][1], of_b[-1][1]
    bad = _first_bad(pairs)
    if bad is not None and (differs_from is None or bad < differs_from):
        differs_from = bad
    return CurveComparison(
        first_step=first,
        last_step=last,
        common=len(pairs),
        equal=equal if pairs else None,
        unequal_from=unequal_from,
        differs_from=differs_from,
        is_noise_known=judged,
        noise=noise,
        final=final,
    )


def compare_rates(a: Curve, b: Curve) -> CurveComparison | None:
    """Learning rates; as compare_values."""
    span = _span(a.points, b.points)
    if span is None:
        return None
    first, last = span
    of_a, of_b = _within(a.points, first, last), _within(b.points, first, last)
    found = [_outside(of_a, b.points), _outside(of_b, a.points)]
    known = [step for step in found if step is not None]
    final = (of_a[-1][1], of_b[-1][1]) if of_a and of_b else None
    return CurveComparison(
        first_step=first,
        last_step=last,
        common=len(_pairs(a.points, b.points)),
        differs_from=min(known) if known else None,
        is_noise_known=True,
        final=final,
    )


def _span(a: Points, b: Points) -> tuple[int, int] | None:
    if not a or not b:
        return None
    first, last = max(a[0][0], b[0][0]), min(a[-1][0], b[-1][0])
    return (first, last) if first <= last else None


def _within(points: Points, first: int, last: int) -> Points:
    return points[bisect_left(points, first, key=_step) : bisect_right(points, last, key=_step)]


def _step(point: tuple[int, float]) -> int:
    return point[0]


def _finite(points: Points) -> Points:
    return [point for point in points if math.isfinite(point[1])]


def _pairs(a: Points, b: Points) -> list[tuple[int, float, float]]:
    others = dict(b)
    return [(step, value, others[step]) for step, value in a if step in others]


def _equal(pairs: Sequence[tuple[int, float, float]]) -> tuple[int, int | None]:
    """How many are equal from the first on, and the step of the first that is not."""
    for count, (step, one, other) in enumerate(pairs):
        if one != other and not (math.isnan(one) and math.isnan(other)):
            return count, step
    return len(pairs), None


def _first_bad(pairs: Sequence[tuple[int, float, float]]) -> int | None:
    """The first step at which one of both is finite and the other is not: no noise is that large."""
    return next((step for step, one, other in pairs if math.isfinite(one) != math.isfinite(other)), None)


class _Stretch(NamedTuple):
    """Some steps, and what both runs have of them."""

    begin: int
    a: Points
    b: Points
    scatter_a: float
    scatter_b: float


def _apart(
    a: Points, b: Points, first: int, last: int, is_paired: bool
) -> tuple[int | None, float | None, tuple[float, float] | None]:
    """From where on they differ by more than noise; the noise at the end, and both values there."""
    parts = _stretches(a, b, first, last)
    if not parts:
        return None, None, None
    excess = _excess_paired(parts) if is_paired else _excess(parts)
    noise, final = max(parts[-1].scatter_a, parts[-1].scatter_b), (_middle(parts[-1].a), _middle(parts[-1].b))
    for place, (part, away) in enumerate(zip(parts, excess, strict=True)):
        is_last = place + 1 == len(parts)
        goes_on = abs(away) > ALONE if is_last else min(away * excess[place + 1], abs(excess[place + 1])) > 1
        if (abs(away) > 1 and goes_on) or _is_far_for_long(parts[place : place + LONG]):
            return part.begin, noise, final
    return None, noise, final


def _is_far_for_long(parts: Sequence[_Stretch]) -> bool:
    """Whether b is well above a, or well below, in LONG stretches: by chance it is not so in each of them."""
    pairs = [(_middle(part.a), _middle(part.b)) for part in parts]
    return len(pairs) == LONG and (
        all(b - a > LARGE_SHARE * max(abs(a), abs(b)) for a, b in pairs)
        or all(a - b > LARGE_SHARE * max(abs(a), abs(b)) for a, b in pairs)
    )


def _excess(parts: Sequence[_Stretch]) -> list[float]:
    """Of each stretch how far b lies from a, in limits."""
    # A short stretch may look quieter than the run is.
    least_a, least_b = median(part.scatter_a for part in parts), median(part.scatter_b for part in parts)
    found = []
    for part in parts:
        error_a = _error(max(part.scatter_a, least_a), len(part.a))
        limit = SIGMAS * math.hypot(error_a, _error(max(part.scatter_b, least_b), len(part.b)))
        limit += TREND_SHARE * max(abs(_trend(part.a)), abs(_trend(part.b)))
        found.append(_in_limits(_middle(part.b) - _middle(part.a), limit, part))
    return found


def _excess_paired(parts: Sequence[_Stretch]) -> list[float]:
    """Likewise, of the same steps: what both have in common, as of the same samples, is no noise then."""
    away = [[(step, other - one) for (step, one), (_, other) in zip(part.a, part.b, strict=True)] for part in parts]
    scatters = [_scatter(points) for points in away]
    least = median(scatters)
    return [
        _in_limits(_middle(points), SIGMAS * _error(max(scatter, least), len(points)), part)
        for part, points, scatter in zip(parts, away, scatters, strict=True)
    ]


def _in_limits(away: float, limit: float, part: _Stretch) -> float:
    limit = max(limit, LEAST_SHARE * max(abs(_middle(part.a)), abs(_middle(part.b))))
    return away / limit if limit else 0.0


def _stretches(a: Points, b: Points, first: int, last: int) -> list[_Stretch]:
    count = max(1, min(STRETCHES, min(len(a), len(b)) // LEAST))
    edges = [first + (last + 1 - first) * n / count for n in range(count + 1)]
    parts = []
    for low, high in itertools.pairwise(edges):
        begin, end = math.ceil(low), math.ceil(high) - 1
        of_a, of_b = _within(a, begin, end), _within(b, begin, end)
        if len(of_a) >= LEAST // 4 and len(of_b) >= LEAST // 4:
            parts.append(_Stretch(begin, of_a, of_b, _scatter(of_a), _scatter(of_b)))
    return parts


def _middle(points: Points) -> float:
    return median(value for _, value in points)


def _trend(points: Points) -> float:
    """How far the second half's median lies from the first's."""
    half = len(points) // 2
    return _middle(points[half:]) - _middle(points[:half] or points)


def _scatter(points: Points) -> float:
    """Standard deviation of single values around a line through both halves' medians."""
    half = len(points) // 2
    slope = 2 * _trend(points) / len(points)
    level = _middle(points[:half] or points)
    away = [abs(value - level - slope * (place - (half - 1) / 2)) for place, (_, value) in enumerate(points)]
    return _TO_SIGMA * median(away)


def _error(scatter: float, count: int) -> float:
    return _MEDIAN_ERROR * scatter / math.sqrt(max(count / INDEPENDENT, 1.0))


def _outside(points: Points, other: Points) -> int | None:
    """The first step whose value the other run does not have, there or between its neighbouring steps."""
    for step, value in points:
        place = bisect_left(other, step, key=_step)
        if place < len(other) and other[place][0] == step:
            near = [other[place][1]]
            slack = 0.0
        else:
            near = [known for _, known in other[max(place - 2, 0) : place + 2]]
            # Between two that were read it may have turned round.
            slack = max((abs(one - two) for one, two in itertools.pairwise(near)), default=0.0)
        low, high = min(near), max(near)
        margin = slack + RATE_SHARE * max(abs(low), abs(high))
        if not low - margin <= value <= high + margin:
            return step
    return None
