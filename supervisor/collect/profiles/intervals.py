"""Stretches of time that may overlap: what they cover together, and what of it others do not. Pure.

A stretch is (start, end), start < end, in any unit. All that is answered is in order, and does not overlap or touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """What they cover together; those that end before they begin cover nothing."""
    united: list[Interval] = []
    for start, end in sorted(one for one in intervals if one[0] < one[1]):
        if united and start <= united[-1][1]:
            if end > united[-1][1]:
                united[-1] = (united[-1][0], end)
        else:
            united.append((start, end))
    return united


def subtract(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """What these cover, and those do not. Both as unite() answers them."""
    left: list[Interval] = []
    at = 0
    for interval in these:
        start, end = interval
        while at < len(those) and those[at][1] <= start:
            at += 1
        index = at
        while index < len(those) and those[index][0] < end:
            if those[index][0] > start:
                left.append((start, those[index][0]))
            start = max(start, those[index][1])
            index += 1
        if start < end:
            left.append((start, end))
    return left


def clip(intervals: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """What of them lies within."""
    return [(max(one[0], start), min(one[1], end)) for one in intervals if one[0] < end and one[1] > start]


def total(intervals: Iterable[Interval]) -> float:
    """How long they are together."""
    return sum(end - start for start, end in intervals)
