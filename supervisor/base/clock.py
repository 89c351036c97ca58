"""The engine's clock, as a process of this run keeps it, and whether that process ran while the clock went on."""

from __future__ import annotations

import time

SKIP_S = 5.0
"""A loop that asks for the time this much later than it meant to was not running: frozen, stopped, or the machine was.
"""


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


class SkipDetector:
    """Whether a loop has run since it last looked at the clock. Pure: seconds of any clock that goes on meanwhile.

    A process is stopped wherever it happens to be, not only where it waits, and on a busy machine that is mostly in the
    middle of a turn. It goes on there, with what it had heard before, and the next time that it reads is from after the
    stop. So it is asked of each time that something is judged by, before that is.
    """

    def __init__(self, now_s: float) -> None:
        self._ran_s = now_s

    def skipped_s(self, now_s: float, waited_s: float = 0.0) -> float:
        """For how long it has not run, since this was last asked; 0: it has. waited_s: what it meant to wait for."""
        gap_s, self._ran_s = now_s - self._ran_s, now_s
        return gap_s if gap_s - waited_s > SKIP_S else 0.0
