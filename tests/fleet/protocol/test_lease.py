"""The lease: two attempts never train at once, whatever a link does to frames and whatever the clocks show."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model.events import RankReport
from guardrun.supervisor.fleet.protocol.lease import (
    CLOCK_RATE,
    END_MARGIN_S,
    HEAD_WAKE_S,
    KEPT,
    MOST_STILL_S,
    STEPS,
    STILL_S,
    WAKE_S,
    NodeLease,
    ProgressTimeout,
    Waking,
    boot_s,
    on_another_clock,
    ranks_end_s,
    ranks_gone_s,
)

LOOP_S = 1.0
"""A node's supervisor looks so often."""
KILL_S = 1.5
"""What its launcher takes to end ranks by SIGKILL, and the order to it."""
NANO_S = 1e-6
"""Of sums of floats."""


@dataclass
class Clock:
    """A clock that runs at its own rate from its own origin."""

    origin_s: float
    rate: float

    def at(self, real_s: float) -> float:
        return self.origin_s + self.rate * real_s

    def real(self, shown_s: float) -> float:
        return (shown_s - self.origin_s) / self.rate


@dataclass
class Story:
    """A node that is cut off, its head, and what happens to them; in real seconds."""

    node: Clock
    head: Clock
    term_s: float
    frames: list[tuple[float, float | None, float, float | None]]
    """(sent at, way up, answered after, way down); a way that is None: lost."""
    advances: list[float]
    """When its ranks advance with those of other nodes, as long as these have ranks."""
    others_end_s: float
    """When the other nodes' ranks are ended, …"""
    said_after_s: float
    """… and how much later their nodes have said so."""
    head_began_s: float
    """The head before it, if any, is gone; what that one had heard nobody knows."""
    phase_s: float
    """When the node's supervisor looks, within LOOP_S."""
    frozen: list[tuple[float, float]] = field(default_factory=list)
    """(from, for): the node's supervisor does not run, its ranks do."""
    asleep: tuple[float, float] = (0.0, 0.0)
    """(from, for): nothing of the node runs."""

    def contacts(self) -> tuple[list[float], list[tuple[float, float, float]]]:
        """When the head receives frames; when the node has answers, and when those frames were sent and received."""
        received, answered = [], []
        for sent_s, up_s, held_s, down_s in self.frames:
            if up_s is None or sent_s + up_s < self.head_began_s:
                continue
            received.append(sent_s + up_s)
            if down_s is not None:
                answered.append((sent_s + up_s + held_s + down_s, sent_s, sent_s + up_s))
        return received, answered

    def looks(self) -> list[float]:
        """When the node's supervisor runs: a second after the last time, or once it runs again."""
        at_s, times = self.phase_s, []
        while at_s < END_S:
            for since_s, length_s in sorted([*self.frozen, self.asleep]):
                if since_s <= at_s < since_s + length_s:
                    at_s = since_s + length_s
            times.append(at_s)
            at_s += LOOP_S
        return times

    def trained_until_s(self) -> float:
        """When no rank of the node is alive any more, by the rule as the node follows it.

        An answer to what reached the head after it had gone on is an order to end them.
        """
        _, answered = self.contacts()
        lease, progress_s, waking = NodeLease(self.term_s), self.node.at(0.0), Waking(self.node.at(0.0))
        joined_s = self.node.at(0.0)  # its ranks were started by an order: it was in contact then
        since_s, asleep_s = self.asleep
        gone_on_s = self.next_begins_s(math.inf)
        news = sorted(
            [(at_s, "stop" if got_s > gone_on_s else "answer", sent_s) for at_s, sent_s, got_s in answered]
            + [(at_s, "advance", 0.0) for at_s in self.advances]
        )
        for look_s in self.looks():
            while news and news[0][0] <= look_s:
                at_s, kind, sent_s = news.pop(0)
                if kind == "stop":
                    return look_s + KILL_S
                if kind == "answer":
                    lease.answered(self.node.at(sent_s))
                elif at_s <= self.others_end_s and not since_s <= at_s < since_s + asleep_s:
                    progress_s = self.node.at(at_s)
            contact_s, now_s = max(lease.contact_s, joined_s), self.node.at(look_s)
            if waking.turn(now_s, max(0.0, now_s - contact_s - self.term_s)):
                continue
            if now_s >= ranks_end_s(contact_s, progress_s, term_s=self.term_s, still_s=STILL_S):
                return look_s + KILL_S
        raise AssertionError("they train for ever")

    def next_begins_s(self, alive_s: float) -> float:
        """When the head may start the next attempt; what it hears of the node once its ranks are gone is no matter."""
        received, _ = self.contacts()
        said_s = self.head.at(self.others_end_s + self.said_after_s)
        heard_s = self.head.at(max(self.head_began_s, 0.0))
        for at_s in sorted(received):
            gone_s = ranks_gone_s(heard_s, said_s, term_s=self.term_s, still_s=STILL_S)
            if at_s > alive_s or self.head.at(at_s) >= gone_s:
                break
            heard_s = max(heard_s, self.head.at(at_s))
        gone_s = ranks_gone_s(heard_s, said_s, term_s=self.term_s, still_s=STILL_S)
        return self.head.real(gone_s)


END_S = 2000.0
rates = st.floats(1 - CLOCK_RATE, 1 + CLOCK_RATE)
clocks = st.builds(Clock, st.floats(-1e5, 1e5), rates)
legs = st.one_of(st.none(), st.floats(0, 100))
stops = st.tuples(st.floats(0, 500), st.floats(0, END_MARGIN_S - LOOP_S - KILL_S))
"""Of the node's supervisor: within what the margin leaves for it."""
sleeps = st.one_of(st.just((0.0, 0.0)), st.tuples(st.floats(0, 500), st.floats(0, 300)))
stories = st.builds(
    Story,
    node=clocks,
    head=clocks,
    term_s=st.floats(1, 600),
    frames=st.lists(st.tuples(st.floats(0, 500), legs, st.floats(0, 10), legs), max_size=30),
    advances=st.lists(st.floats(0, 700), max_size=30),
    others_end_s=st.floats(0, 700),
    said_after_s=st.floats(0, 60),
    head_began_s=st.one_of(st.just(0.0), st.floats(0, 100)),
    phase_s=st.floats(0, LOOP_S),
    frozen=st.lists(stops, max_size=1),
    asleep=sleeps,
)


SLOW, FAST = Clock(0.0, 1 - CLOCK_RATE), Clock(0.0, 1 + CLOCK_RATE)


@given(stories)
@example(  # the longest term, clocks as far apart as may be, a look a moment too early, and all of the margin used
    Story(SLOW, FAST, 600.0, [(0.0, 0.0, 0.0, 0.0)], [], 0.0, 0.0, 0.0, 0.6, [(601.6, 0.499)], (0.0, 0.0))
)
def test_two_attempts_never_train_at_once(story: Story) -> None:
    """Frames late, lost and out of order, clocks at any time and rate, a head that is new, a supervisor that stops.

    A node that slept through all of it finds its ranks alive as it wakes up: it asks, and ends them without an answer.
    """
    alive_s = story.trained_until_s()
    next_s = story.next_begins_s(alive_s)
    if next_s < alive_s - NANO_S:
        since_s, asleep_s = story.asleep
        woken_s = since_s + asleep_s
        assert next_s >= since_s, "and nothing of it ran until"
        assert woken_s < alive_s <= woken_s + WAKE_S / (1 - CLOCK_RATE) + 2 * LOOP_S + KILL_S + END_MARGIN_S


def test_a_supervisor_that_stops_for_longer_than_the_margin_is_what_the_margin_is_for() -> None:
    """The property is no mere form: with one thing more than is allowed for, both halves train."""
    clock = Clock(0.0, 1.0)
    story = Story(clock, clock, 10.0, [(0.0, 0.0, 0.0, 0.0)], [], 0.0, 0.0, 0.0, 0.0, [(9.5, 2 * END_MARGIN_S)])
    alive_s = story.trained_until_s()
    assert story.next_begins_s(alive_s) < alive_s


def test_ranks_end_without_contact_and_without_progress() -> None:
    assert ranks_end_s(100.0, 90.0, term_s=15.0, still_s=5.0) == 115.0
    assert ranks_end_s(100.0, 112.0, term_s=15.0, still_s=5.0) == 117.0, "they advance with others"
    assert ranks_end_s(100.0, -math.inf, term_s=15.0, still_s=60.0) == 115.0


def test_the_head_waits_longer_than_a_node_may_go_on() -> None:
    assert ranks_gone_s(100.0, 90.0, term_s=15.0, still_s=5.0) == pytest.approx(115.0 + END_MARGIN_S, rel=1e-3)
    assert ranks_gone_s(100.0, 112.0, term_s=15.0, still_s=5.0) == pytest.approx(117.0 + END_MARGIN_S, rel=1e-3)
    assert ranks_gone_s(0.0, -math.inf, term_s=600.0, still_s=60.0) > on_another_clock(600.0) + END_MARGIN_S


def test_the_lease_counts_from_the_sending() -> None:
    lease = NodeLease(10.0)
    assert (lease.contact_s, lease.is_held(0.0), lease.contact_lost_s(100.0)) == (-math.inf, False, 0.0)
    lease.answered(5.0)
    assert lease.is_held(14.9)
    assert not lease.is_held(15.0)
    lease.answered(3.0)  # an older answer, late
    assert lease.contact_s == 5.0
    assert (lease.contact_lost_s(15.0), lease.contact_lost_s(18.0)) == (0.0, 3.0)
    lease.answered(17.0)
    assert (lease.is_held(18.0), lease.contact_lost_s(18.0)) == (True, 0.0)


def test_the_nodes_clock_goes_on() -> None:
    assert boot_s() <= boot_s()


# Standing still -------------------------------------------------------------------------------------------


def moved(at_s: float, step: int, joint: int, progress: int = 0) -> list[RankReport]:
    return [RankReport(global_rank=0, step=step, joint=joint, progress=progress, progress_s=at_s, heart_s=at_s)]


def test_a_node_with_long_steps_may_stand_still_for_longer() -> None:
    still = ProgressTimeout()
    assert still.limit_s == STILL_S
    for number in range(1, 6):
        assert still.note(moved(12.0 * number, number, 10 * number)) == 12.0 * number
    assert still.limit_s == STEPS * 12.0
    for number in range(6, 60):
        still.note(moved(60.0 + number, number, 10 * number))
    assert still.limit_s == STILL_S, "what steps have come to take counts, not what the first took"


def test_nothing_makes_a_node_stand_still_for_ever() -> None:
    still = ProgressTimeout()
    for number in range(1, 4):
        still.note(moved(1800.0 * number, number, number))
    assert still.limit_s == MOST_STILL_S


def test_what_a_start_takes_is_not_what_steps_take() -> None:
    """Calls before the first step, and a checkpoint's step that is shown long before the next one is done."""
    still = ProgressTimeout()
    for number in range(1, 5):
        still.note(moved(30.0 * number, 0, number))
    still.note(moved(200.0, 150, 5))
    for number in range(10):
        assert still.note(moved(240.0 + number, 151 + number, 6 + number))
    assert still.limit_s == STILL_S


def test_what_a_node_does_by_itself_is_no_progress_of_the_job() -> None:
    """An evaluation while the others wait, steps between two exchanges: nothing of it ends with the others."""
    still = ProgressTimeout()
    assert still.note(moved(1.0, 1, 5)) == 1.0
    assert still.note(moved(2.0, 1, 5, progress=50)) is None
    assert still.note(moved(3.0, 2, 5, progress=51)) is None
    assert still.note(moved(4.0, 2, 6)) == 4.0


def test_what_a_rank_has_done_by_itself_since_it_was_counted_is_none_either() -> None:
    report = RankReport(global_rank=0, step=1, joint=1, progress_s=7.9, heart_s=7.0)
    assert ProgressTimeout().note([report]) == 7.0


def test_who_begins_in_the_middle_allows_for_what_it_has_not_seen() -> None:
    still = ProgressTimeout(is_partial=True)
    for number in range(1, KEPT + 2):
        still.note(moved(float(number), 1, number))
        assert still.limit_s == MOST_STILL_S
    still.note(moved(KEPT + 2.0, 1, KEPT + 2))
    assert still.limit_s == STILL_S


def test_a_node_that_did_not_run_asks_before_it_goes_by_its_lease() -> None:
    waking = Waking(100.0)
    assert not waking.turn(101.0, lost_s=0.0)
    assert waking.turn(120.0, lost_s=12.0), "frozen for 19 s"
    assert waking.turn(121.0, lost_s=13.0)
    assert waking.turn(140.0, lost_s=11.5), "it was in contact in between, and frozen again before the next turn"
    assert waking.turn(140.0 + WAKE_S - 0.1, lost_s=16.4)
    assert not waking.turn(140.0 + WAKE_S, lost_s=16.5)


def test_it_asks_for_longer_where_the_head_does_not_run_either() -> None:
    """Nodes of a job that was suspended are continued one after the other, and the head may be the last."""
    waking = Waking(100.0)
    assert waking.turn(120.0, lost_s=12.0)
    assert waking.turn(120.0 + WAKE_S + 1.0, lost_s=18.0, is_head_still=True)
    assert waking.turn(120.0 + HEAD_WAKE_S - 0.1, lost_s=41.9, is_head_still=True)
    assert not waking.turn(120.0 + HEAD_WAKE_S, lost_s=42.0, is_head_still=True)


def test_a_node_that_ran_all_the_time_heeds_its_lease_though_its_head_does_not_run() -> None:
    waking = Waking(100.0)
    assert not any(waking.turn(100.0 + n, lost_s=max(0.0, n - 8.0), is_head_still=True) for n in range(1, 60))


def test_a_head_that_cannot_be_reached_is_not_asked_for_longer() -> None:
    waking = Waking(100.0)
    assert waking.turn(120.0, lost_s=12.0, is_head_still=True)
    assert not waking.turn(120.0 + WAKE_S, lost_s=17.0)


def test_ranks_are_joint_once_they_did_anything_with_those_of_other_nodes() -> None:
    still = ProgressTimeout()
    still.note(moved(1.0, 1, 0, progress=9))
    assert not still.is_joint
    still.note(moved(2.0, 2, 1))
    assert still.is_joint


def test_a_loop_that_is_always_late_heeds_its_lease_all_the_same() -> None:
    waking = Waking(100.0)
    asks = [waking.turn(at_s, lost_s=at_s - 101.0) for at_s in (103.0, 106.0, 109.0, 112.0)]
    assert asks == [True, True, False, False]
