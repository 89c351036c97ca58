"""How much somebody holds, by the seconds of a run: parts of stories about memory."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from guardrun.supervisor.engine.model import actions as ac
from tests.engine.conftest import Told

Curve = Callable[[float], float]
"""Seconds since the run began → GiB."""


def plus(*curves: Curve) -> Curve:
    return lambda s: sum(curve(s) for curve in curves)


def saw(most: float, length_s: float, base: float = 0.0) -> Curve:
    return lambda s: base + most * (s % length_s) / length_s


def fills(most: float, usual_s: float, base: float = 0.0) -> Curve:
    """Samples are cached as they are drawn: ever fewer are new."""
    return lambda s: base + most * (1 - math.exp(-s / usual_s))


def until_full(most: float, within_s: float, base: float = 0.0) -> Curve:
    """One after the other, and then it is full."""
    return lambda s: base + most * min(1.0, s / within_s)


def at_times(more: float, every_s: float, lasts_s: float, base: float = 0.0) -> Curve:
    return lambda s: base + (more if s % every_s < lasts_s and s >= every_s else 0.0)


def noise(size: float, seed: int) -> Curve:
    chance = random.Random(seed)
    return lambda s: abs(chance.gauss(0, size))


def only(told: Told) -> ac.Incident:
    (incident,) = told.incidents.values()
    return incident
