"""The lease: a node always knows first, whatever a link does to frames and whatever the clocks show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model.events import RankReport
from guardrun.supervisor.fleet.protocol.lease import (
    CLOCK_RATE,
    KEPT,
    MOST_STILL_S,
    STEPS,
    STILL_S,
    WAKE_S,
    HeadLease,
    NodeLease,
    ProgressTimeout,
    Waking,
    boot_s,
    head_term_s,
)


@dataclass
class Clock:
    """A clock that runs at its own rate from its own origin."""

    origin_s: float
    rate: float

    def at(self, real_s: float) -> float:
        return self.origin_s + self.rate * real_s

    def real(self, shown_s: float) -> float:
        return (shown_s - self.origin_s) / self.rate


rates = st.floats(1 - CLOCK_RATE, 1 + CLOCK_RATE)
clocks = st.builds(Clock, st.floats(-1e5, 1e5), rates)
legs = st.one_of(st.none(), st.floats(0, 100))
"""How long a frame or an answer is on its way; None: lost."""
frames = st.lists(st.tuples(st.floats(0, 500), legs, st.floats(0, 10), legs), max_size=30)
"""(sent at, way up, answered after, way down) in real seconds."""


@given(
    node=clocks,
    head=clocks,
    term_s=st.floats(1, 600),
    margin_s=st.floats(0, 60),
    frames=frames,
    head_began_s=st.floats(0, 100),
)
def test_a_nodes_lease_has_ended_before_the_head_may_think_so(
    *,
    node: Clock,
    head: Clock,
    term_s: float,
    margin_s: float,
    frames: list[tuple[float, float | None, float, float | None]],
    head_began_s: float,
) -> None:
    ours, theirs = NodeLease(term_s), HeadLease(term_s, head.at(head_began_s), margin_s)
    events: list[tuple[float, int, float]] = []
    for sent_s, up_s, held_s, down_s in frames:
        if up_s is None or sent_s + up_s < head_began_s:
            continue
        events.append((sent_s + up_s, 0, sent_s))
        if down_s is not None:
            events.append((sent_s + up_s + held_s + down_s, 1, sent_s))
    for real_s, kind, sent_s in sorted(events):
        if kind == 0:
            theirs.heard(head.at(real_s))
        else:
            ours.answered(node.at(sent_s))
        if ours.ends_s is not None:
            # A node that sees its lease end takes up to margin_s, on its own clock, to end its ranks.
            assert head.real(theirs.ends_s) >= node.real(ours.ends_s + margin_s) - 1e-6


def test_the_lease_counts_from_the_sending() -> None:
    lease = NodeLease(10.0)
    assert (lease.ends_s, lease.is_held(0.0), lease.contact_lost_s(100.0)) == (None, False, 0.0)
    lease.answered(5.0)
    assert lease.is_held(14.9)
    assert not lease.is_held(15.0)
    lease.answered(3.0)  # an older answer, late
    assert lease.ends_s == 15.0
    assert (lease.contact_lost_s(15.0), lease.contact_lost_s(18.0)) == (0.0, 3.0)
    lease.answered(17.0)
    assert (lease.is_held(18.0), lease.contact_lost_s(18.0)) == (True, 0.0)


def test_the_head_waits_longer_than_the_term() -> None:
    lease = HeadLease(10.0, 100.0, margin_s=5.0)
    assert lease.ends_s == pytest.approx(100.0 + head_term_s(10.0) + head_term_s(5.0))
    assert lease.ends_s > 115.0
    lease.heard(90.0)
    assert lease.ends_s > 115.0
    lease.heard(120.0)
    assert lease.may_run(135.0)
    assert not lease.may_run(135.1)


def test_the_nodes_clock_goes_on() -> None:
    assert boot_s() <= boot_s()


# Standing still -------------------------------------------------------------------------------------------


def moved(step: int, joint: int, progress: int = 0) -> list[RankReport]:
    return [RankReport(global_rank=0, step=step, joint=joint, progress=progress)]


def test_a_node_with_long_steps_may_stand_still_for_longer() -> None:
    still = ProgressTimeout()
    assert still.limit_s == STILL_S
    for number in range(1, 6):
        assert still.note(moved(number, 10 * number), 12.0 * number)
    assert still.limit_s == STEPS * 12.0
    for number in range(6, 60):
        still.note(moved(number, 10 * number), 60.0 + number)
    assert still.limit_s == STILL_S, "what steps have come to take counts, not what the first took"


def test_nothing_makes_a_node_stand_still_for_ever() -> None:
    still = ProgressTimeout()
    for number in range(1, 4):
        still.note(moved(number, number), 1800.0 * number)
    assert still.limit_s == MOST_STILL_S


def test_what_a_start_takes_is_not_what_steps_take() -> None:
    """Calls before the first step, and a checkpoint's step that is shown long before the next one is done."""
    still = ProgressTimeout()
    for number in range(1, 5):
        still.note(moved(0, number), 30.0 * number)
    still.note(moved(150, 5), 200.0)
    for number in range(10):
        assert still.note(moved(151 + number, 6 + number), 240.0 + number)
    assert still.limit_s == STILL_S


def test_what_a_node_does_by_itself_is_no_progress_of_the_job() -> None:
    """An evaluation while the others wait, steps between two exchanges: nothing of it ends with the others."""
    still = ProgressTimeout()
    assert still.note(moved(1, 5), 1.0)
    assert not still.note(moved(1, 5, progress=50), 2.0)
    assert not still.note(moved(2, 5, progress=51), 3.0)
    assert still.note(moved(2, 6), 4.0)


def test_who_begins_in_the_middle_allows_for_what_it_has_not_seen() -> None:
    still = ProgressTimeout(is_partial=True)
    for number in range(1, KEPT + 2):
        still.note(moved(1, number), float(number))
        assert still.limit_s == MOST_STILL_S
    still.note(moved(1, KEPT + 2), KEPT + 2.0)
    assert still.limit_s == STILL_S


def test_a_node_that_did_not_run_asks_before_it_goes_by_its_lease() -> None:
    waking = Waking(100.0)
    assert not waking.turn(101.0, lost_s=0.0)
    assert waking.turn(120.0, lost_s=12.0), "frozen for 19 s"
    assert waking.turn(121.0, lost_s=13.0)
    assert waking.turn(140.0, lost_s=11.5), "it was in contact in between, and frozen again before the next turn"
    assert waking.turn(140.0 + WAKE_S - 0.1, lost_s=16.4)
    assert not waking.turn(140.0 + WAKE_S, lost_s=16.5)


def test_a_loop_that_is_always_late_heeds_its_lease_all_the_same() -> None:
    waking = Waking(100.0)
    asks = [waking.turn(at_s, lost_s=at_s - 101.0) for at_s in (103.0, 106.0, 109.0, 112.0)]
    assert asks == [True, True, False, False]
