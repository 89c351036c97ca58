"""When systemd's watchdog is fed: while turns end, and for no longer than a bound where one does not."""

from __future__ import annotations

import threading

from guardrun.supervisor.agent.agent_status import Watchdog
from tests.support.waiting import wait_until

PERIOD_S = 0.6


def test_a_turn_without_end_is_not_fed_for_long() -> None:
    looked, fed = [0], [0]
    is_over = threading.Event()

    def is_well(now_s: float) -> bool:
        looked[0] += 1
        return True

    def feed() -> None:
        fed[0] += 1

    watchdog = Watchdog(PERIOD_S, feed, is_well)
    watchdog.start()
    try:
        wait_until(lambda: fed[0] >= 3, 10, "food while the loop waits")
        watchdog.turn_begins()
        before = fed[0]
        is_over.wait(3 * PERIOD_S)  # systemd would have ended it
        assert fed[0] - before <= 3
        watchdog.turn_ended()
        before = fed[0]
        wait_until(lambda: fed[0] > before, 10, "food once the turn is over")
    finally:
        watchdog.close()
