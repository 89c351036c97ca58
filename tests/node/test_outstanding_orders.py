"""When a launcher is not going to do what it was ordered."""

from __future__ import annotations

import pytest

from guardrun.supervisor.node.launcher_takeover import (
    MARGIN_S,
    SILENT_S,
    START_S,
    STOP_S,
    STOPPED_S,
    Outstanding,
)
from guardrun.supervisor.wire.control_messages import Start, Stop

STOP = Stop(attempt=1, grace_s=10.0)
START = Start(attempt=1)


def ordered(order: Start | Stop, heard_s: float = 0.0, at_s: float = 0.0) -> Outstanding:
    asked = Outstanding(heard_s)
    asked.ordered(order, 0, at_s)
    return asked


@pytest.mark.parametrize(("order", "limit_s"), [(STOP, 10.0 + STOP_S), (START, START_S)])
def test_a_launcher_that_is_not_heard_has_its_time(order: Start | Stop, limit_s: float) -> None:
    asked = ordered(order)
    assert not asked.is_overdue(limit_s - 0.1, is_stopped=False)
    assert asked.is_overdue(limit_s, is_stopped=False)
    asked.note_contact(limit_s - SILENT_S + 0.1)  # it lives: what takes long is known to it
    assert not asked.is_overdue(limit_s, is_stopped=False)


@pytest.mark.parametrize("order", [STOP, START])
def test_one_that_is_stopped_is_not_waited_for(order: Start | Stop) -> None:
    asked = ordered(order)
    assert not asked.is_overdue(STOPPED_S - 0.1, is_stopped=True)
    assert asked.is_overdue(STOPPED_S, is_stopped=True)
    long_silent = ordered(order, heard_s=-100.0)
    assert not long_silent.is_overdue(MARGIN_S - 0.1, is_stopped=True)
    assert long_silent.is_overdue(MARGIN_S, is_stopped=True)


def test_without_an_order_it_may_be_as_silent_as_it_likes() -> None:
    asked = Outstanding(0.0)
    assert not asked.is_overdue(1e6, is_stopped=True)
    asked.ordered(Stop(attempt=1, grace_s=0.0), 2, 10.0)  # of an attempt that is long over
    assert not asked.is_overdue(1e6, is_stopped=True)


def test_answers_end_it() -> None:
    asked = ordered(START)
    asked.started(0)
    assert asked.order is START
    asked.started(1)
    assert asked.order is None
    asked = ordered(STOP)
    asked.started(1)  # told again
    assert asked.order is STOP
    asked.stopped(1)
    assert asked.order is None


def test_an_order_that_is_repeated_is_as_old_as_the_first() -> None:
    asked = ordered(STOP)
    asked.ordered(STOP, 1, 20.0)
    assert asked.is_overdue(10.0 + STOP_S, is_stopped=False)
    asked = ordered(START)
    asked.ordered(STOP, 1, 100.0)
    assert not asked.is_overdue(START_S, is_stopped=False)


def test_time_in_which_nobody_ran_does_not_count() -> None:
    """As `scontrol suspend` has it: the launcher was stopped, and so was who watches it."""
    asked = ordered(STOP)
    asked.skipped(600.0)
    assert not asked.is_overdue(600.0 + STOPPED_S - 0.1, is_stopped=True)
    assert asked.is_overdue(600.0 + 10.0 + STOP_S, is_stopped=False)
