"""What the throughput items make of their turns."""

from __future__ import annotations

import random

import pytest

from benchmarks.items.throughput import Turn, interval, speed_ratios


def test_pairs_are_compared_turn_by_turn() -> None:
    """Both launchers' turns of a pair met the same machine."""
    quick, slow = Turn(200.0, 4.0), Turn(100.0, 8.0)
    assert speed_ratios([(quick, slow), (slow, slow)]) == [0.5, 1.0]


def test_the_interval_goes_by_rounds_not_by_turns() -> None:
    """Turns of one round share what their processes have: more of them tell nothing new."""
    rounds = [[0.98] * 100, [1.02] * 100]
    assert interval(rounds) == (0.98, 1.02)


@pytest.mark.parametrize("true", [0.99, 1.0])
def test_it_holds_the_true_ratio_and_narrows_with_more_rounds(true: float) -> None:
    chance = random.Random(1)
    rounds = [[chance.gauss(true, 0.01) for _ in range(4)] for _ in range(64)]
    (few_low, few_high), (low, high) = interval(rounds[:8]), interval(rounds)
    assert low < true < high
    assert high - low < (few_high - few_low) * 0.6
