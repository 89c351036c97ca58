"""How fast a run steps, and whether it has slowed down since a moment: what ties a node's trouble to training."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.model.run_view import StepRateView

SAMPLE_S = 2.0
KEPT = 450
"""Samples: fifteen minutes."""
WARM_UP_S = 10.0
"""After the first step: compilation, caches, the first evaluation."""
WINDOW_S = 10.0
BEFORE_S = 300.0
"""How far back the usual rate is looked for."""
MIN_WINDOWS = 3
"""On either side: of two, one with a pause in it would count for half."""
SLOW = 1.15
"""Steps take so much longer."""


class StepRate(msgspec.Struct, kw_only=True):
    """The furthest step of an attempt over time."""

    times_s: list[float] = []
    steps: list[int] = []

    def add(self, at_s: float, step: int) -> None:
        """The attempt has got to a step; the same one again says nothing."""
        if self.times_s and (at_s - self.times_s[-1] < SAMPLE_S or step == self.steps[-1]):
            return
        self.times_s.append(at_s)
        self.steps.append(step)
        if len(self.times_s) > KEPT:
            del self.times_s[0], self.steps[0]

    def step_s(self, from_s: float, to_s: float) -> float | None:
        """Median seconds a step in a stretch of time, from windows of WINDOW_S; None where there are too few.

        A window ends with a step: a pause makes one long one, which alone does not move the median.
        """
        windows: list[float] = []
        began: tuple[float, int] | None = None
        for at_s, step in zip(self.times_s, self.steps, strict=True):
            if not from_s <= at_s <= to_s:
                continue
            if began is None:
                began = (at_s, step)
            elif at_s - began[0] >= WINDOW_S:
                windows.append((at_s - began[0]) / max(step - began[1], 1))
                began = (at_s, step)
        return sorted(windows)[len(windows) // 2] if len(windows) >= MIN_WINDOWS else None


class Slowdown(NamedTuple):
    """Seconds a step before a moment, and since."""

    before_s: float
    since_s: float

    @property
    def factor(self) -> float:
        """How many times longer a step takes since then; 1: no change."""
        return self.since_s / self.before_s


def slowdown(rate: StepRateView, began_s: float, now_s: float) -> Slowdown | None:
    """How steps have changed since began_s; None where too little is known of either side."""
    if not rate.times_s:
        return None
    first_s = max(rate.times_s[0] + WARM_UP_S, began_s - BEFORE_S)
    before_s, since_s = rate.step_s(first_s, began_s), rate.step_s(began_s, now_s)
    return Slowdown(before_s, since_s) if before_s and since_s else None
