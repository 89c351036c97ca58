"""What a device draws beside what it usually does, at the moment of a look. Pure.

Where all ranks have issued a collective and none completes it, devices that wait in NCCL's kernels draw what waiting
takes, and one that is stuck in something else, or has lost its place, draws another amount. That is worth a person's
look and no proof: it is shown, and blames nobody.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

EVERY_S = 10.0
KEPT = 512
"""Samples of a device, 85 minutes: a hang of ten does not move their median, once training has lasted for twenty."""
LEAST = 12
"""Samples, before anything is usual."""
APART = 0.6
"""A device is odd whose share of its usual power is this much of the others' median share, or less; …"""
LEAST_OTHERS = 2
"""… where there are so many others to compare with."""


class PowerNow(NamedTuple):
    """One device."""

    subject: str
    watts: float
    usual_watts: float
    is_odd: bool
    """Unlike the others."""


class PowerBook:
    """Fed with readings; asked at a look."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[float]] = {}
        self._sampled_s: dict[str, float] = {}
        self._now: dict[str, float] = {}

    def note(self, subject: str, at_s: float, watts: float) -> None:
        """A device draws so much. at_s: of any clock that does not go back."""
        self._now[subject] = watts
        if at_s - self._sampled_s.get(subject, -EVERY_S) >= EVERY_S:
            self._sampled_s[subject] = at_s
            self._samples.setdefault(subject, deque(maxlen=KEPT)).append(watts)

    def compare(self, subjects: list[str]) -> list[PowerNow]:
        """What these devices draw now, of those for which that is known and something is usual."""
        usual = {
            subject: median(samples)
            for subject in subjects
            if len(samples := self._samples.get(subject, ())) >= LEAST and median(samples) > 0
        }
        shares = {subject: self._now[subject] / watts for subject, watts in usual.items()}
        found = []
        for subject, watts in usual.items():
            others = [share for other, share in shares.items() if other != subject]
            is_odd = len(others) >= LEAST_OTHERS and shares[subject] <= APART * median(others)
            found.append(PowerNow(subject, self._now[subject], watts, is_odd))
        return found
