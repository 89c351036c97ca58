"""Waiting for an event with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SOON_S = 0.01
"""Who asks as often as this wants to act at a certain moment, and goes on asking."""
LATER_S = 0.25
"""Nobody else asks more often than needed: what has taken seconds may be seen a twentieth of that later."""


LEAST_S = 120.0
"""However short the wait that somebody asked for: on a machine that does ten other things seconds say nothing."""


def wait_until(read: Callable[[], T], timeout_s: float, what: str, every_s: float = 0.02) -> T:
    """Call `read` until it answers something true, and return that.

    every_s: how often at first.

    Raises TimeoutError naming `what` after timeout_s, or LEAST_S where that is longer: how quick something is, is not
    shown by this.
    """
    began_s = time.monotonic()
    timeout_s = max(timeout_s, LEAST_S)
    deadline_s = began_s + timeout_s
    while True:
        answer = read()
        if answer:
            return answer
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}; last seen: {answer!r}")
        wait_s = every_s
        if every_s > SOON_S:
            wait_s = min(every_s + 0.05 * (time.monotonic() - began_s), max(every_s, LATER_S))
        time.sleep(wait_s)
