"""Gaps between advances, and where the time of a run went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model import lost_time as lg
from guardrun.supervisor.engine.model.lost_time import Ledger
from guardrun.supervisor.engine.observation.progress_gaps import ENOUGH, FACTOR, Gaps


def learned(*seconds: float) -> Gaps:
    gaps = Gaps()
    for gap_s in seconds:
        gaps.add(gap_s)
    return gaps


def test_nothing_learned_is_the_floor() -> None:
    assert learned().suspicious_after_s(10) == 10
    assert learned().suspicious_after_s(0) == 1


def test_the_longest_counts_until_there_are_enough() -> None:
    assert learned(30).suspicious_after_s(10) == FACTOR * 30
    assert learned(1, 30).suspicious_after_s(10) == FACTOR * 30


def test_one_outlier_is_forgotten_soon() -> None:
    assert learned(200, 1, 1, 1, 1, 1).suspicious_after_s(10) == 10


def test_one_in_twenty_is_an_outlier() -> None:
    assert learned(*([1.0] * 95), *([40.0] * 5)).suspicious_after_s(10) == 10
    assert learned(*([1.0] * 90), *([40.0] * 10)).suspicious_after_s(10) == FACTOR * 40


def test_reports_of_the_same_advance_by_many_nodes_are_no_gaps() -> None:
    gaps = Gaps()
    for _ in range(50):
        gaps.add(30.0)
        for _ in range(12_499):
            gaps.add(0.00008)
        gaps.add(-0.5)
    assert gaps.total == 50
    assert gaps.suspicious_after_s(10) == pytest.approx(90, rel=0.25)


@given(st.lists(st.floats(0.5, 20_000), min_size=1, max_size=300))
def test_the_quantile_is_right_to_a_bin(seconds: list[float]) -> None:
    typical_s = learned(*seconds).typical_s
    ordered = sorted(seconds)
    wanted = min(-(-len(ordered) * 95 // 100), max(len(ordered) - 1, ENOUGH), len(ordered))
    assert ordered[wanted - 1] <= typical_s * 1.0001 <= max(ordered[wanted - 1] * 1.26, 0.51)


USES = [lg.TRAINING, lg.DETECTING, lg.STOPPING, lg.STARTING, lg.REDOING, lg.OTHER]


@given(st.lists(st.tuples(st.sampled_from(USES), st.floats(0, 100), st.floats(0, 50), st.booleans()), max_size=40))
def test_the_ledger_sums_to_the_wall_time(moves: list[tuple[str, float, float, bool]]) -> None:
    ledger, now_s = Ledger(), 0.0
    for use, seconds, back_s, is_switch in moves:
        now_s += seconds
        if is_switch:
            ledger.switch(use, now_s)
        else:
            ledger.reclassify(use, now_s - back_s, now_s)
        assert sum(ledger.total(each, now_s) for each in USES) == pytest.approx(now_s)
        assert 0 <= ledger.goodput(now_s) <= 1
        assert all(value >= 0 for value in ledger.lost_s(now_s).values())


def test_goodput_is_a_share_of_what_was_booked() -> None:
    ledger = Ledger(since_s=100.0)
    ledger.switch(lg.TRAINING, 110.0)
    assert ledger.goodput(140.0) == pytest.approx(0.75)
    ledger.reclassify(lg.DETECTING, 130.0, 140.0)
    assert ledger.goodput(140.0) == pytest.approx(0.5)


def test_a_run_of_short_steps_is_not_known_by_its_evaluations_alone() -> None:
    gaps = Gaps()
    at_s = 0.0
    for _ in range(4):
        for _ in range(1200):  # a minute of steps of 50 ms
            at_s += 0.05
            gaps.add(0.05, at_s)
        at_s += 6.0
        gaps.add(6.0, at_s)
    assert gaps.total <= 4 * 121
    assert gaps.suspicious_after_s(10) == 10
