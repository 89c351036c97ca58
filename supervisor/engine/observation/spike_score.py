"""The spike score of a run: which share of its losses, and of its gradient norms, lies far from those just before.

As OLMo 2 counts it (arXiv 2501.00656): of the values of a series, those at least SIGMAS standard deviations away from
the average of the last WINDOW. So a value counts once WINDOW came before it, and both directions do. It compares runs,
and says nothing of single steps: that is metric_window.py's, whose median a spike does not move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from guardrun.supervisor.engine.model.events import SpikeCounts

WINDOW = 1000
SIGMAS = 7.0
LARGEST = 1e100
"""Beyond it values are taken for this: a square of them would be infinite."""
HEAVY = 0.1
"""Share of all squares. What is left of a sum once such a one was taken off is rounding, for the most part."""


class RollingWindow:
    """The last WINDOW values of a series: their average, and how far they scatter. Some 0.6 µs a value."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._shift = self._sum = self._squares = 0.0
        """The sums are of differences from a value that is near them all."""
        self._since = 0
        """Values since they were summed up anew."""

    def add(self, value: float) -> bool | None:
        """Take the next, finite value in. Whether it is a spike; None: too few came before it."""
        if not -LARGEST < value < LARGEST:
            value = LARGEST if value > 0 else -LARGEST
        values, total, squares = self._values, self._sum, self._squares
        if len(values) < WINDOW:
            values.append(value)
            if len(values) == WINDOW:
                self._sum_up()
            return None
        away, gone = value - self._shift, values[0] - self._shift
        # Of so many values: their number times the difference from the average, and times the deviation, squared.
        spread, far = WINDOW * squares - total * total, WINDOW * away - total
        is_spike = 0.0 < SIGMAS * SIGMAS * spread <= far * far
        values.append(value)
        self._since += 1
        if gone * gone > HEAVY * squares or self._since > WINDOW:
            self._sum_up()
        else:
            self._sum = total + away - gone
            self._squares = squares + away * away - gone * gone
        return is_spike

    def _sum_up(self) -> None:
        values = self._values
        self._since = 0
        self._shift = shift = sorted(values)[len(values) // 2]
        self._sum = sum(value - shift for value in values)
        self._squares = sum((value - shift) ** 2 for value in values)


class SpikeScore:
    """Of one rank in one attempt."""

    def __init__(self) -> None:
        self._loss, self._norm = RollingWindow(), RollingWindow()
        self._counts = [0, 0, 0, 0]

    def add_loss(self, value: float) -> None:
        """Take the next, finite loss in."""
        self._add(0, self._loss.add(value))

    def add_norm(self, value: float) -> None:
        """Take the next, finite gradient norm in."""
        self._add(2, self._norm.add(value))

    def _add(self, place: int, is_spike: bool | None) -> None:
        if is_spike is not None:
            self._counts[place] += 1
            self._counts[place + 1] += is_spike

    @property
    def counts(self) -> SpikeCounts | None:
        """So far; None: too few values came."""
        return SpikeCounts(*self._counts) if any(self._counts) else None


def add_up(counts: Iterable[SpikeCounts]) -> SpikeCounts:
    """Of several ranks, or attempts."""
    total = [0, 0, 0, 0]
    for one in counts:
        total[0] += one.losses
        total[1] += one.loss_spikes
        total[2] += one.norms
        total[3] += one.norm_spikes
    return SpikeCounts(*total)


def score_of(counts: SpikeCounts) -> dict[str, float | int]:
    """`loss`, `grad_norm`: shares from 0 to 1; `losses`, `grad_norms`: of how many values. Empty: of none."""
    score: dict[str, float | int] = {}
    if counts.losses:
        score |= {"loss": round(counts.loss_spikes / counts.losses, 6), "losses": counts.losses}
    if counts.norms:
        score |= {"grad_norm": round(counts.norm_spikes / counts.norms, 6), "grad_norms": counts.norms}
    return score
