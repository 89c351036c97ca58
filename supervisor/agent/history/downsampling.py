"""Samples for the history: a line a minute and quantity in place of one a second, and none where nothing changed."""

from __future__ import annotations

import math
from typing import NamedTuple

from guardrun.supervisor.health.base.readings import Readout, Sample

BUCKET_S = 60.0
REPEAT_S = 1800.0
"""A quantity that does not change is written this often: so that a chart knows that it was still read."""
MAX_SERIES = 20_000


class Point(NamedTuple):
    """What one quantity was in a stretch of time."""

    subject: str
    name: str
    wall_s: float
    """When the stretch began."""
    low: float | None
    high: float | None
    mean: float | None
    text: str
    """Of what is no number; empty: a number."""


class _Bucket:
    __slots__ = ("count", "high", "low", "name", "subject", "text", "total", "wall_s")

    def __init__(self, sample: Sample, wall_s: float) -> None:
        self.subject, self.name = sample.subject, sample.name
        self.wall_s = wall_s
        self.count, self.total = 0, 0.0
        self.low, self.high = math.inf, -math.inf
        self.text = ""

    def add(self, number: float) -> None:
        self.count += 1
        self.total += number
        self.low = min(self.low, number)
        self.high = max(self.high, number)

    def point(self) -> Point:
        if self.count == 0:
            return Point(self.subject, self.name, self.wall_s, None, None, None, self.text)
        return Point(self.subject, self.name, self.wall_s, self.low, self.high, self.total / self.count, "")


class Downsampler:
    """Gathers samples; `take_points` answers what is worth writing."""

    def __init__(self, bucket_s: float = BUCKET_S, repeat_s: float = REPEAT_S) -> None:
        self._bucket_s = bucket_s
        self._repeat_s = repeat_s
        self._began_s: float | None = None
        self._open: dict[tuple[str, str], _Bucket] = {}
        self._written: dict[tuple[str, str], Point] = {}

    def add(self, readout: Readout, wall_s: float) -> None:
        """Take note of what a readout knows; what is unknown, or no number that could be, is nothing."""
        if self._began_s is None:
            self._began_s = wall_s
        for sample in readout.samples:
            value = sample.value
            if value is None or (isinstance(value, float) and not math.isfinite(value)):
                continue
            key = (sample.subject, sample.name)
            bucket = self._open.get(key)
            if bucket is None:
                if len(self._open) >= MAX_SERIES:
                    continue
                bucket = self._open[key] = _Bucket(sample, wall_s)
            if isinstance(value, str):
                bucket.text = value
            else:
                bucket.add(float(value))

    def take_points(self, wall_s: float, is_end: bool = False) -> list[Point]:
        """What has been gathered, once its time is full (or, with is_end, whatever there is)."""
        if self._began_s is None or (not is_end and 0 <= wall_s - self._began_s < self._bucket_s):
            return []
        points = [point for bucket in self._open.values() if self._is_news(point := bucket.point())]
        self._open.clear()
        self._began_s = wall_s
        if len(self._written) > MAX_SERIES:
            self._written.clear()
        self._written.update({(point.subject, point.name): point for point in points})
        return points

    def _is_news(self, point: Point) -> bool:
        before = self._written.get((point.subject, point.name))
        if before is None or not 0 <= point.wall_s - before.wall_s < self._repeat_s:
            return True
        return (point.low, point.high, point.text) != (before.low, before.high, before.text)
