"""Waiting for an event with a deadline, in place of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(read: Callable[[], T], timeout_s: float, what: str, every_s: float = 0.02) -> T:
    """Call `read` until it answers something true, and return that.

    Raises TimeoutError naming `what` after timeout_s.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = read()
        if answer:
            return answer
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}; last seen: {answer!r}")
        time.sleep(every_s)
