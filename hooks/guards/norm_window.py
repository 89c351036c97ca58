"""Whether a gradient norm is far above those before it, by OLMo-core's rule for steps that are left out.

A step is, where its norm is so many standard deviations above the mean of the last 128 (SkipStepOptimizer in
allenai/OLMo-core, olmo_core/optim/skip_step_optimizer.py, which leaves the first half of a window alone, too), and
twice that mean: a window of nearly equal norms has no spread. Norms of steps that were left out count as well, so a
level that is another for good is left out for a few steps only.
"""

from __future__ import annotations

from collections import deque
from math import inf, sqrt

SIZE = 128
LEAST = SIZE // 2
FACTOR = 2.0


class NormWindow:
    """The last norms of an optimizer's gradients."""

    def __init__(self, sigmas: float) -> None:
        """sigmas: standard deviations; 0: no norm is far off."""
        self._sigmas = sigmas
        self._norms: deque[float] = deque(maxlen=SIZE)

    def is_far(self, norm: float) -> bool:
        """Take in the norm of the next step, and say whether it is far above those before. Some 10 µs."""
        norms = self._norms
        count, is_far = len(norms), False
        if count >= LEAST and norm < inf:
            mean = sum(norms) / count
            spread = sqrt(sum((each - mean) ** 2 for each in norms) / (count - 1))
            is_far = norm > max(mean + self._sigmas * spread, FACTOR * mean)
        if norm < inf:
            norms.append(norm)
        return self._sigmas > 0 and is_far
