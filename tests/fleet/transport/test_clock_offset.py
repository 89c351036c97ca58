"""How far two clocks are apart: the truth is never further away than the estimate says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.fleet.transport.connection import DRIFT, Offset

legs_s = st.floats(0, 3)


@given(
    truth_s=st.floats(-1e6, 1e6),
    rate=st.floats(1 - DRIFT, 1 + DRIFT),
    answers=st.lists(st.tuples(st.floats(0, 1000), legs_s, legs_s, legs_s), min_size=1, max_size=20),
)
def test_the_truth_lies_within_the_error(
    truth_s: float, rate: float, answers: list[tuple[float, float, float, float]]
) -> None:
    """truth_s: theirs less ours at our 0; rate: how fast theirs runs; (sent, up, held, down) on our clock."""
    offset = Offset()

    def theirs(ours_s: float) -> float:
        return truth_s + rate * ours_s

    last_s = 0.0
    for sent_s, up_s, held_s, down_s in sorted(answers, key=sum):
        got_s = sent_s + up_s + held_s + down_s
        heard_s = sent_s + up_s
        offset.answered(sent_s, got_s, theirs(heard_s), theirs(max(heard_s, got_s - down_s)))
        last_s = got_s
        for now_s in (got_s, got_s + 500):
            # Half of what either clock drifts while an answer is on its way is not in the error: DRIFT of nine seconds.
            assert abs(theirs(now_s) - now_s - offset.offset_s) <= offset.error_s(now_s) + 9 * DRIFT + 1e-6
    assert offset.is_known
    assert offset.error_s(last_s) <= 3.0 + DRIFT * 1010


def test_the_fastest_answer_wins_until_it_is_old() -> None:
    offset = Offset()
    assert offset.error_s(0.0) == float("inf")
    assert not offset.is_known
    offset.answered(10.0, 10.2, 110.0, 110.0)
    assert offset.offset_s == pytest.approx(99.9)
    assert offset.error_s(10.2) == pytest.approx(0.1)
    offset.answered(11.0, 11.01, 111.0, 111.0)
    assert offset.offset_s == pytest.approx(99.995)
    offset.answered(12.0, 13.0, 112.9, 112.9)
    assert offset.offset_s == pytest.approx(99.995)
    late_s = 11.01 + 0.2 / DRIFT
    offset.answered(late_s, late_s + 0.2, late_s + 90.1, late_s + 90.1)
    assert offset.offset_s == pytest.approx(90.0)


@pytest.mark.parametrize(
    ("sent_s", "got_s", "heard_s", "now_s"), [(5.0, 4.0, 1.0, 1.0), (1.0, 2.0, 9.0, 8.0), (1.0, 2.0, 5.0, 8.0)]
)
def test_what_cannot_be_is_no_answer(sent_s: float, got_s: float, heard_s: float, now_s: float) -> None:
    offset = Offset()
    offset.answered(sent_s, got_s, heard_s, now_s)
    assert not offset.is_known
