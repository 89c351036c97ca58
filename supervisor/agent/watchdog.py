"""Feeding systemd's watchdog, on a thread that a long turn of the loop does not starve, and that does not lie for it.

It feeds while the loop waits, and while the turn that it is in began less than a bound ago. A turn that never ends is
fed no longer than that, and systemd ends the agent with SIGABRT, as it does where the loop says that all is not well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FEEDS_A_PERIOD = 3
BOUND = 0.5
"""Of systemd's own period: how old a turn may be that is still fed. systemd acts one period after the last feed."""


class Watchdog:
    """The loop says when a turn begins and ends; everything else is the thread's."""

    def __init__(self, period_s: float, feed: Callable[[], None], is_well: Callable[[float], bool]) -> None:
        """period_s: systemd's; 0: nobody watches. is_well: asked before each feed, on the thread, with the time."""
        self._period_s = period_s
        self._feed = feed
        self._is_well = is_well
        self._began_s: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardrun-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread; nothing where systemd does not watch."""
        if self._period_s > 0:
            self._thread.start()

    def turn_begins(self) -> None:
        """From the loop, when it stops waiting: until `turn_ended` the turn's age counts."""
        self._began_s = time.monotonic()

    def turn_ended(self) -> None:
        """From the loop, before it waits again: waiting is no fault, however long."""
        self._began_s = None

    def close(self) -> None:
        """End the thread, and wait for it. systemd is fed no more."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            now_s, began_s = time.monotonic(), self._began_s
            is_moving = began_s is None or now_s - began_s < BOUND * self._period_s
            if is_moving and self._is_well(now_s):
                self._feed()
            if self._end.wait(self._period_s / FEEDS_A_PERIOD):
                return
