"""Training curves: what a rank's loss and gradient norm are at a step. Made by rule, with noise by seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

NAN, INF = math.nan, math.inf
SIZE = 8191


class Values(NamedTuple):
    """Of one step; None: there is none."""

    loss: float | None = None
    grad_norm: float | None = None
    is_skipped: bool = False
    """A GradScaler has left it out."""
    left_out: int = 0
    """Flags of a step that guardrun has left out."""


Curve = Callable[[int, int], Values]
"""(rank, step) → its values."""
EVERYBODY = 101
"""The rank whose noise is that of all: a norm after gradients have been reduced."""


@cache
def draw_noise(seed: int, tails: float) -> list[float]:
    """Values of `Noise`."""
    chance = random.Random(seed)
    return [chance.gauss(0, 1) * (chance.uniform(2, 5) if chance.random() < tails else 1) for _ in range(SIZE)]


class Noise:
    """Normal noise, another for each rank and step; drawn when it is first asked for."""

    def __init__(self, seed: int, tails: float = 0.0) -> None:
        """tails: the share of values that are several times as large."""
        self._seed, self._tails = seed, tails

    def __call__(self, rank: int, step: int) -> float:
        return draw_noise(self._seed, self._tails)[(step * 17 + rank * 2003) % SIZE]


def plain(
    seed: int,
    *,
    start: float = 11.0,
    floor: float = 2.3,
    tau: float = 150.0,
    noise: float = 0.04,
    tails: float = 0.0,
    norm: float = 1.0,
    norm_noise: float = 0.2,
) -> Curve:
    """A loss that falls to its floor, with noise by rank; a norm that falls with it, the same on all ranks."""
    draw = Noise(seed, tails)

    def curve(rank: int, step: int) -> Values:
        loss = (floor + (start - floor) * math.exp(-step / tau)) * math.exp(noise * draw(rank, step))
        level = norm * (1 + 4 * math.exp(-step / 40)) * math.exp(norm_noise * draw(EVERYBODY, step))
        return Values(loss, level)

    return curve


def scaled(curve: Curve, factor: Callable[[int, int], float], norm: Callable[[int, int], float] | None = None) -> Curve:
    """Another curve, times something that depends on rank and step. norm: of the norm; None: it stays."""

    def changed(rank: int, step: int) -> Values:
        loss, grad_norm, is_skipped, _ = curve(rank, step)
        loss = None if loss is None else loss * factor(rank, step)
        if norm is not None and grad_norm is not None:
            grad_norm *= norm(rank, step)
        return Values(loss, grad_norm, is_skipped)

    return changed


def every(curve: Curve, steps: int) -> Curve:
    """Values are seen every so many steps alone."""
    return lambda rank, step: curve(rank, step) if step % steps == 0 else Values()


def instead(curve: Curve, at: Callable[[int, int], Values | None]) -> Curve:
    """Another curve, but for where `at` gives something."""
    return lambda rank, step: at(rank, step) or curve(rank, step)


def without_norm(curve: Curve) -> Curve:
    """Only losses are seen."""
    return lambda rank, step: Values(curve(rank, step).loss, None)


def poisoned(curve: Curve, rank: int, step: int, *, norm_too: bool = True, value: float = NAN) -> Curve:
    """One rank's loss is not finite at a step, everybody's gradients with it, and from the next step on all is."""

    def changed(of_rank: int, at: int) -> Values:
        values = curve(of_rank, at)
        if at < step:
            return values
        grad_norm = NAN if norm_too and values.grad_norm is not None else values.grad_norm
        loss = value if of_rank == rank or at > step else values.loss
        return Values(loss if at == step else NAN, grad_norm)

    return changed


def leap(at: int, factor: float, *, heals: float = 0.0, lasts: int = 1 << 40) -> Callable[[int, int], float]:
    """From a step on so many times as much, for so long. heals: steps in which that fades to a third, or 0."""

    def changed(_: int, step: int) -> float:
        if not at <= step < at + lasts:
            return 1.0
        return 1 + (factor - 1) * (math.exp(-(step - at) / heals) if heals else 1.0)

    return changed


def pieces(*parts: tuple[int, float]) -> Callable[[int, int], float]:
    """Levels: (from this step on, factor)."""

    def changed(_: int, step: int) -> float:
        level = 1.0
        for at, factor in parts:
            level = factor if step >= at else level
        return level

    return changed


def spread(levels: Sequence[float]) -> Callable[[int, int], float]:
    """Each rank has a level of its own."""
    return lambda rank, _: levels[rank % len(levels)]
