"""Ticks that lead nowhere come seldom, and those that are due come in time."""

from __future__ import annotations

from guardrun.supervisor.daemon.tick_pace import FAILED_MOST_S, STILL_DUE_S, Pace


def ticks_in(seconds: float, has_failed: bool) -> int:
    """How many ticks there are in so long where the deadline never moves."""
    pace, now_s, count = Pace(), 10.0, 0
    while now_s < 10.0 + seconds:
        due_s = pace.due_s(5.0)
        assert due_s is not None
        now_s = max(now_s, due_s)
        pace.ticked(now_s, has_failed, 5.0)
        count += 1
    return count


def test_a_deadline_is_kept() -> None:
    pace = Pace()
    assert pace.due_s(12.5) == 12.5
    pace.ticked(12.5, False, 13.0)
    assert pace.due_s(12.51) == 12.51
    assert pace.due_s(None) is None


def test_a_deadline_that_stays_due_does_not_spin() -> None:
    assert ticks_in(10.0, has_failed=False) <= 10.0 / STILL_DUE_S + 1


def test_a_tick_that_raises_is_tried_ever_more_seldom() -> None:
    assert ticks_in(3600.0, has_failed=True) <= 3600.0 / FAILED_MOST_S + 10


def test_a_tick_that_works_again_ends_that() -> None:
    pace = Pace()
    for _ in range(5):
        pace.ticked(10.0, True, 5.0)
    pace.ticked(20.0, False, 25.0)
    assert pace.due_s(25.0) == 25.0
