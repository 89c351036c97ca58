"""A loop that outlives its own failures: what goes wrong in guardrun must not end training."""

from __future__ import annotations

import time
from collections.abc import Callable

from guardrun.launcher.base.terminal_lines import Log, print_line

FAILURES = 20
PAUSE_S = 0.1
"""After a turn that raised. With the ranks dead, that many in a row are the end."""


def keep_turning(
    turn: Callable[[], int | None], log: Log, is_anybody_alive: Callable[[], bool], pause_s: float = PAUSE_S
) -> int:
    """Call turn until it returns an exit status.

    One that raises (no descriptor is to be had, a bug of ours) is said, once, and tried again: the next may do better.
    Raises what it did only where that goes on and nobody is alive.
    """
    failures = 0
    has_said = False
    while True:
        try:
            status = turn()
        except Exception as error:
            failures += 1
            if not has_said:
                has_said = True
                print_line(f"the launcher met {error!r} (training goes on)")
                log.write("turn_failed", error=repr(error))
            if failures >= FAILURES and not is_anybody_alive():
                raise
            time.sleep(pause_s)
            continue
        failures = 0
        if status is not None:
            return status
