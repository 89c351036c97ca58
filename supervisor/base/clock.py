"""The engine's clock, as a process of this run keeps it."""

from __future__ import annotations

import time


class EngineClock:
    """Turns CLOCK_MONOTONIC into `now_s`, the engine's seconds since the run was created.

    base_s and mono_s are `clock_base_s` and `clock_mono_s` of run.json.
    """

    def __init__(self, base_s: float, mono_s: float) -> None:
        self._base_s = base_s
        self._mono_s = mono_s

    def set(self, base_s: float, mono_s: float) -> None:
        """Go by another host's clock from here on."""
        self._base_s, self._mono_s = base_s, mono_s

    def now(self) -> float:
        """The engine's time now."""
        return self._base_s + time.monotonic() - self._mono_s

    def wall_s(self, at_s: float) -> float:
        """What the wall clock of today says for a time of the engine's: to compare with files and with Slurm."""
        return time.time() - self.now() + at_s

    def at_ns(self, ns: int) -> float:
        """The engine's time at a CLOCK_MONOTONIC time in nanoseconds; 0 (never) stays 0."""
        if ns == 0:
            return 0.0
        return self._base_s + ns / 1e9 - self._mono_s
