"""What is usual for a rank's loss and gradient norm, and which steps are odd: not finite, or far above the usual.

Usual is the median of the last WINDOW values, and how far they scatter their median absolute deviation: single values
move neither. Both on a log scale, since losses and norms scatter by shares of themselves; where a window has a value
that is not positive (contrastive losses, RL, a log-likelihood), on the linear one. All of this holds of an odd value:

- WARM_UP values came before it, and it is none of the first SCRATCH_STEPS steps of a training that starts from scratch,
  where losses fall steeply. (The steps of a resumed one are counted on from its checkpoint's.)
- it lies SIGMAS deviations above the median, and is LOSS_FACTOR (NORM_FACTOR) times as much;
- it is BEYOND times the highest of the window: of noise with heavy tails the next record is near the last one.

Odd values stay out of the window, but SETTLES of them within a window are none any more: they are taken in, so that a
new level is the usual one once half a window lies there. A value that is not finite is odd from the first step on; but
a step that a GradScaler has left out is in order: gradients that overflow are how it finds its scale.

A value costs a comparison; median and deviation are computed anew once in REFRESH values.
"""

from __future__ import annotations

import math
from collections import deque

from guardrun.supervisor.engine.model.events import MAX_ODD, OddStep, TrainingMetrics
from guardrun.supervisor.engine.observation.spike_score import SpikeScore

LOSS, GRAD_NORM, SKIPPED = 1, 2, 4
LOSS_NAN, LOSS_INFINITE, NORM_NAN, NORM_INFINITE = 8, 16, 32, 64
LEFT_OUT, BAD_GRADIENTS, FAR = 128, 256, 512
"""Bits of a step's flags, as hooks/wire/metrics_page.py has them: nothing of the hooks is imported here."""
LOSS_BAD = LOSS_NAN | LOSS_INFINITE
NORM_BAD = NORM_NAN | NORM_INFINITE
NONFINITE = LOSS_BAD | NORM_BAD

WINDOW = 128
WARM_UP = 64
"""Values."""
SCRATCH_STEPS = 100
SIGMAS = 6.0
LOSS_FACTOR = 2.0
NORM_FACTOR = 5.0
BEYOND = 1.25
SETTLES = 16
REFRESH = 32
"""Values; of a window that is a quarter."""
LEAST_SIGMA = 0.02
"""On the log scale, and in shares of what is typical on the linear one: a window of equal values has none."""
MAX_URGENT = 8
"""Reports in a row: what is odd all the time is told as often as anything else, or it would fill the journal."""
MAX_ODD_LATER = 2
"""Odd steps of each report after these: two show how far they lie apart. At most half of a report's are finite."""
MAX_VALUES = 1024
"""That a report's median is taken of; as many as the metrics page holds."""
_TO_SIGMA = 1.4826
"""Median absolute deviation → standard deviation, of a normal distribution (Rousseeuw and Croux, 1993)."""
_MEAN_TO_SIGMA = 1.2533
"""Mean absolute deviation → standard deviation, likewise: sqrt(pi / 2)."""


class Series:
    """The last values of one metric of one rank."""

    def __init__(self, factor: float) -> None:
        """factor: so many times the usual at least is odd."""
        self.usual: float | None = None
        """Median of the window; None: there are too few values."""
        self._factor = factor
        self._values: deque[float] = deque(maxlen=WINDOW)
        self._aside: deque[tuple[int, float]] = deque()
        """Odd values of the last WINDOW: which one it was, and the value."""
        self._seen = self._stale = 0
        self._limit = math.inf
        self._sigma = 1.0
        self._is_log = True

    def add(self, value: float, *, is_early: bool) -> float:
        """Take a finite value in. Returns how many deviations it lies above the usual; 0.0: it is not odd."""
        self._seen += 1
        if value <= self._limit or is_early:
            self._values.append(value)
            self._stale += 1
            if self._stale >= REFRESH and len(self._values) >= WARM_UP:
                self._refresh()
            return 0.0
        sigmas = self._sigmas(value)
        aside = self._aside
        aside.append((self._seen, value))
        while aside[0][0] <= self._seen - WINDOW:
            aside.popleft()
        if len(aside) >= SETTLES:
            self._values.extend(value for _, value in aside)
            aside.clear()
            self._refresh()
        return sigmas

    def _sigmas(self, value: float) -> float:
        usual = self.usual or 0.0
        away = math.log(value / usual) if self._is_log else value - usual
        return away / self._sigma

    def _refresh(self) -> None:
        """The median, and from where on a value is odd."""
        values = sorted(self._values)
        middle, highest = values[len(values) // 2], values[-1]
        self._stale, self.usual, self._is_log = 0, middle, values[0] > 0
        if self._is_log:
            logs = [math.log(value) for value in values]
            self._sigma = max(_sigma(logs), LEAST_SIGMA)
            away = max(SIGMAS * self._sigma, math.log(self._factor))
            highest_log = max(logs[len(logs) // 2] + away, logs[-1] + math.log(BEYOND))
            self._limit = math.exp(highest_log) if highest_log < 700 else math.inf
            return
        typical = _median([abs(value) for value in values])
        self._sigma = max(_sigma(values), LEAST_SIGMA * typical)
        away = max(SIGMAS * self._sigma, (self._factor - 1) * typical, BEYOND * (highest - middle))
        # Of a window of zeros nothing says how much is much.
        self._limit = middle + away if self._sigma > 0 else math.inf


class MetricWindow:
    """Loss and gradient norm of one rank in one attempt, step by step."""

    def __init__(self) -> None:
        self.is_urgent = False
        """An odd step was added since the last report was taken, and is worth a report of its own."""
        self._urgent_left = MAX_URGENT
        self._loss = Series(LOSS_FACTOR)
        self._norm = Series(NORM_FACTOR)
        self._nonfinite = 0
        self._score = SpikeScore()
        self._begin()

    def _begin(self) -> None:
        self.is_urgent = False
        self._first: int | None = None
        self._last = 0
        self._losses: deque[float] = deque(maxlen=MAX_VALUES)
        self._norms: deque[float] = deque(maxlen=MAX_VALUES)
        self._usual_loss, self._usual_norm = self._loss.usual, self._norm.usual
        self._odd: list[OddStep] = []
        self._odd_finite = 0
        self._has_odd = False

    def add(self, step: int, loss: float, grad_norm: float, flags: int, batch: int) -> None:
        """Take a step's values in, in the order of the steps.

        step: with the base of a resumed checkpoint. loss, grad_norm: may be NaN or infinite; one that flags say is not
        there is not looked at. flags: of Flag in hooks/wire/metrics_page.py. batch: as OddStep has it.
        """
        if self._first is None:
            self._first = step
        self._last = step
        bad, sigmas, norm_sigmas = flags & NONFINITE, 0.0, 0.0
        known_loss: float | None = None
        known_norm: float | None = None
        if flags & LOSS and not bad & LOSS_BAD:
            if math.isfinite(loss):
                known_loss = loss
                self._losses.append(loss)
                sigmas = self._loss.add(loss, is_early=step <= SCRATCH_STEPS)
                self._score.add_loss(loss)
            else:
                bad |= LOSS_NAN if math.isnan(loss) else LOSS_INFINITE
        if flags & GRAD_NORM and not bad & NORM_BAD:
            if not math.isfinite(grad_norm):
                bad |= NORM_NAN if math.isnan(grad_norm) else NORM_INFINITE
            elif not flags & SKIPPED:
                known_norm = grad_norm
                self._norms.append(grad_norm)
                norm_sigmas = self._norm.add(grad_norm, is_early=step <= SCRATCH_STEPS)
                self._score.add_norm(grad_norm)
        if flags & SKIPPED:
            # What is infinite there is what the scale made of it; a loss that is NaN was so before.
            bad &= LOSS_NAN
        if bad and not flags & LEFT_OUT:
            self._nonfinite += 1
        elif not bad and not sigmas and not norm_sigmas and not flags & LEFT_OUT:
            return
        if not self._has_odd:
            self._usual_loss, self._usual_norm = self._loss.usual, self._norm.usual
        self._has_odd, self.is_urgent = True, self._urgent_left > 0
        most = MAX_ODD if self.is_urgent else MAX_ODD_LATER
        if len(self._odd) >= most or (not bad and self._odd_finite >= most // 2):
            return
        self._odd_finite += not bad
        self._odd.append(OddStep(step, known_loss, known_norm, (flags & ~NONFINITE) | bad, sigmas, norm_sigmas, batch))

    def take_report(self, learning_rate: float | None, skipped: int, left_out: int = 0) -> TrainingMetrics | None:
        """Give what was added since this was last asked for; None where nothing was.

        learning_rate: None or NaN: not known. skipped, left_out: steps of the attempt that a GradScaler left out, and
        that guardrun did.
        """
        if self._first is None:
            return None
        is_known = learning_rate is not None and math.isfinite(learning_rate)
        report = TrainingMetrics(
            first=self._first,
            last=self._last,
            loss=_median(self._losses) if self._losses else None,
            grad_norm=_median(self._norms) if self._norms else None,
            learning_rate=learning_rate if is_known else None,
            usual_loss=self._usual_loss,
            usual_norm=self._usual_norm,
            skipped=skipped,
            nonfinite=self._nonfinite,
            odd=self._odd,
            left_out=left_out,
            spikes=self._score.counts,
        )
        self._urgent_left = max(0, self._urgent_left - 1) if self._has_odd else MAX_URGENT
        self._begin()
        return report


def _median(values: deque[float] | list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _sigma(ascending: list[float]) -> float:
    """The standard deviation, as the median of deviations tells it; of values that are mostly equal, their mean."""
    middle = ascending[len(ascending) // 2]
    away = [abs(value - middle) for value in ascending]
    return _TO_SIGMA * _median(away) or _MEAN_TO_SIGMA * sum(away) / len(away)
