"""Is the launcher not going to do what it was ordered? Pure: the caller has the clock, and looks at the process.

A launcher that runs gives a sign of life every two seconds, and answers every order: an order to stop, at the latest
when it has given up on what not even SIGKILL ends. One that was stopped (Ctrl-Z, SIGSTOP, a debugger), or that hangs in
a file system that is dead, does neither, for hours maybe; with several nodes all others would wait for it.
"""

from __future__ import annotations

from guardrun.supervisor.wire.control_messages import Start, Stop

STOPPED_S = 5.0
"""A launcher that is stopped, by what /proc says, was not heard for so long: not one that a limiter stops in turns."""
SILENT_S = 10.0
"""Likewise one that is not, as far as can be seen: five of its signs of life."""
MARGIN_S = 1.0
"""So long at least an order has been there for it."""
STOP_S = 15.0
"""Beyond the grace: for SIGKILL to work, five seconds; for the last sweep, as many; and what a busy node takes."""
START_S = 120.0
"""It forks, and makes files, which may lie on a file system that takes its time."""


class Outstanding:
    """The newest order to a launcher, until it is answered. Times are seconds of any one clock."""

    def __init__(self, now_s: float) -> None:
        self.order: Start | Stop | None = None
        self._since_s = self._heard_s = now_s

    def ordered(self, order: Start | Stop, attempt: int, now_s: float) -> None:
        """attempt: the newest that has been started here; what is ordered of older ones needs no answer."""
        if order.attempt < attempt:
            return
        old, self.order = self.order, order
        if old is None or (type(old), old.attempt) != (type(order), order.attempt):
            self._since_s = now_s

    def heard(self, now_s: float) -> None:
        """The launcher has said something."""
        self._heard_s = now_s

    def started(self, attempt: int) -> None:
        """Its ranks have been started, or could not be."""
        if isinstance(self.order, Start) and attempt >= self.order.attempt:
            self.order = None

    def stopped(self, attempt: int) -> None:
        """Nothing of an attempt is alive."""
        if self.order is not None and attempt >= self.order.attempt:
            self.order = None

    def skipped(self, gap_s: float) -> None:
        """Nobody ran here for so long: that was not the launcher's silence."""
        self._since_s += gap_s
        self._heard_s += gap_s

    def waited_s(self, now_s: float) -> float:
        """For how long the order has been there."""
        return now_s - self._since_s

    def is_overdue(self, now_s: float, is_stopped: bool) -> bool:
        """Whether it is not to be waited for any more. is_stopped: the launcher's process is."""
        order, silent_s, waited_s = self.order, now_s - self._heard_s, self.waited_s(now_s)
        if order is None:
            return False
        if is_stopped:
            return silent_s >= STOPPED_S and waited_s >= MARGIN_S
        limit_s = START_S if isinstance(order, Start) else order.grace_s + STOP_S
        return silent_s >= SILENT_S and waited_s >= limit_s
