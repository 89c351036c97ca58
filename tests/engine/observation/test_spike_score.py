"""Which share of a run's values lies far from those before them: by hand, and against the plain definition."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from guardrun.supervisor.engine.model.events import SpikeCounts
from guardrun.supervisor.engine.observation.metric_window import GRAD_NORM, LOSS, SKIPPED, MetricWindow
from guardrun.supervisor.engine.observation.spike_score import (
    SIGMAS,
    WINDOW,
    RollingWindow,
    SpikeScore,
    add_up,
    score_of,
)


def draw(count: int, level: float = 2.0, noise: float = 0.1, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [level + noise * chance.gauss(0, 1) for _ in range(count)]


def by_definition(values: list[float]) -> list[int]:
    """Places of those that are spikes."""
    found = []
    for place in range(WINDOW, len(values)):
        window = values[place - WINDOW : place]
        average = statistics.fmean(window)
        # statistics.pstdev counts in fractions: it would take twenty times as long.
        deviation = math.sqrt(math.fsum((value - average) ** 2 for value in window) / WINDOW)
        if abs(values[place] - average) >= SIGMAS * deviation > 0:
            found.append(place)
    return found


def by_window(values: list[float]) -> list[int]:
    window = RollingWindow()
    told = [window.add(value) for value in values]
    assert told[:WINDOW] == [None] * min(WINDOW, len(values)) and None not in told[WINDOW:]
    return [place for place, is_spike in enumerate(told) if is_spike]


def test_noise_has_no_spikes_and_both_directions_count() -> None:
    values = draw(2200)
    assert by_window(values) == []
    values[1500], values[1800] = 4.0, 0.0
    assert by_window(values) == [1500, 1800]
    values[900] = 50.0  # before anything is judged; it widens the window that it is in
    assert by_window(values) == []


@pytest.mark.parametrize("level", [2.0, 0.0, 1e7, -3e4])
def test_as_the_definition_has_it_whatever_leaves_the_window(level: float) -> None:
    """Spikes of many sizes pass through: what is left of the sums once they are gone is not rounding."""
    values, chance = draw(3400, level), random.Random(2)
    for place in (1100, 1300, 1305, 2350, 2400, 3310, 3390):
        values[place] = level + chance.choice((-1, 1)) * 10.0 ** chance.randrange(0, 12)
    values[1200] = 1e18
    expected = by_definition(values)
    assert expected[0] == 1100 and 2350 in expected and len(expected) < 9
    assert by_window(values) == expected


def test_values_that_stay_the_same_and_those_without_end() -> None:
    assert by_window([0.5] * 1500 + [0.75] + [0.5] * 600) == [], "without any scatter nothing says how much is much"
    values = draw(2100)
    values[1040] = -1e308
    values[1050] = 1e308
    assert by_window(values) == [1040, 1050]
    assert by_window([*draw(1050), 1e308, *draw(1010), 9.0]) == [1050, 2061], "and once it is gone all is as before"


def test_a_rank_tells_of_both_series() -> None:
    score = SpikeScore()
    for value in draw(WINDOW):
        score.add_loss(value)
    assert score.counts is None
    for value in (2.0, 9.0, 2.1):
        score.add_loss(value)
    assert score.counts == SpikeCounts(3, 1, 0, 0)
    for value in [*draw(WINDOW), 5.0]:
        score.add_norm(value)
    assert score.counts == SpikeCounts(3, 1, 1, 1)


def test_what_is_no_value_of_a_series_does_not_count() -> None:
    window, values = MetricWindow(), draw(1010)
    for step, value in enumerate(values, 1):
        window.add(step, value, value, LOSS | GRAD_NORM, step)
    window.add(1011, float("nan"), float("inf"), LOSS | GRAD_NORM, 1011)
    window.add(1012, values[0], 1e6, LOSS | GRAD_NORM | SKIPPED, 1012)
    window.add(1013, 90.0, 90.0, GRAD_NORM, 1013)
    report = window.take_report(1e-3, 0)
    assert report is not None and report.spikes == SpikeCounts(11, 0, 11, 1)


def test_shares_of_all_ranks() -> None:
    assert score_of(SpikeCounts()) == {}
    assert score_of(SpikeCounts(400, 1)) == {"loss": 0.0025, "losses": 400}
    total = add_up([SpikeCounts(100, 0, 50, 1), SpikeCounts(300, 1, 50, 1)])
    assert score_of(total) == {"loss": 0.0025, "losses": 400, "grad_norm": 0.02, "grad_norms": 100}
