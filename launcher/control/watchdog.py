"""When is the supervisor dead, wedged, or not worth another start? Pure: the caller has the clock.

All times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

PING_EVERY_S = 2.0
SILENCE_S = 10.0
"""Without any sign of life, it is wedged."""
FIRST_SILENCE_S = 30.0
"""Likewise for one that has yet to say its first word: on a busy machine imports take their time."""
STOPPED_S = 2.0
"""Found stopped by a signal for this long, it is replaced: nobody debugs a supervisor in mid-run."""
FROZEN_S = 3.0
"""Where the loop itself did not run for this long, the machine or the job was frozen: nobody's silence."""

MAX_DEATHS = 5
DEATHS_WITHIN_S = 60.0
BACKOFF_S = (0.0, 0.2, 0.5, 1.0, 2.0)
"""Before the n-th restart of a row."""


class SupervisorWatchdog:
    """Judges one supervisor after the other."""

    def __init__(self, now_s: float) -> None:
        self._deaths: list[float] = []
        self._last_loop_s = now_s
        self._stopped_since_s: float | None = None
        self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self._limit_s = FIRST_SILENCE_S
        self._heard_s = now_s
        self._pinged_s = now_s
        self._stopped_since_s = None

    def started(self, now_s: float) -> None:
        """A new supervisor has been started."""
        self._begin(now_s)

    def looped(self, now_s: float) -> None:
        """The loop runs: call at each turn, before anything is judged."""
        gap_s = now_s - self._last_loop_s
        self._last_loop_s = now_s
        if gap_s > FROZEN_S:
            self._heard_s += gap_s
            self._stopped_since_s = None

    def heard(self, now_s: float) -> None:
        """It showed a sign of life."""
        self._heard_s = now_s
        self._limit_s = SILENCE_S

    def is_ping_due(self, now_s: float) -> bool:
        """Say whether to ask for a sign of life now; saying yes counts as having asked."""
        if now_s - self._pinged_s < PING_EVERY_S:
            return False
        self._pinged_s = now_s
        return True

    def is_wedged(self, now_s: float, is_stopped: bool) -> bool:
        """Say whether it lives but will not answer again."""
        if not is_stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        elif now_s - self._stopped_since_s >= STOPPED_S:
            return True
        return now_s - self._heard_s > self._limit_s

    def died(self, now_s: float) -> float | None:
        """It died, or was killed as wedged: when to start the next one, or None to give up."""
        self._deaths = [at_s for at_s in self._deaths if now_s - at_s < DEATHS_WITHIN_S] + [now_s]
        if len(self._deaths) >= MAX_DEATHS:
            return None
        return now_s + BACKOFF_S[min(len(self._deaths) - 1, len(BACKOFF_S) - 1)]
