"""Whether a loop has run while its clock went on."""

from __future__ import annotations

import pytest

from guardrun.supervisor.base.clock import SKIP_S, SkipDetector


@pytest.mark.parametrize("waited_s", [0.0, 1.0, 60.0])
def test_a_loop_that_wakes_about_when_it_meant_to_has_run(waited_s: float) -> None:
    skips = SkipDetector(100.0)
    assert skips.skipped_s(100.0 + waited_s + SKIP_S - 0.1, waited_s) == 0.0


@pytest.mark.parametrize("waited_s", [0.0, 1.0, 60.0])
def test_one_that_wakes_much_later_has_not(waited_s: float) -> None:
    skips = SkipDetector(100.0)
    gap_s = waited_s + SKIP_S + 0.1
    assert skips.skipped_s(100.0 + gap_s, waited_s) == pytest.approx(gap_s)
    assert skips.skipped_s(100.0 + gap_s + 1.0) == 0.0, "it is told once"


def test_whoever_asks_in_the_middle_of_a_turn_is_told_before_it_judges() -> None:
    skips = SkipDetector(0.0)
    assert skips.skipped_s(1.0, waited_s=1.0) == 0.0
    assert skips.skipped_s(21.0) == 20.0
    assert skips.skipped_s(22.0, waited_s=1.0) == 0.0, "the next turn has nothing to tell"
