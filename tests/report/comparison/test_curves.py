"""From where on two runs' values differ: to the last bit, and by more than noise."""

from __future__ import annotations

import math
import random

import pytest

from guardrun.supervisor.report.comparison.curve_words import value_words
from guardrun.supervisor.report.comparison.curves import compare_rates, compare_values
from guardrun.supervisor.report.comparison.run_facts import Curve, add_point


def course(step: int) -> float:
    """A loss that falls, steeply at first."""
    return 2.0 + 4.0 / (1 + step / 30)


def losses(seed: int, steps: range, away: float = 0.0, since: int = 0) -> Curve:
    """Noisy values of single steps; from a step on `away` higher."""
    noise = random.Random(seed)
    points = [(step, course(step) + noise.gauss(0, 0.05)) for step in steps]
    return Curve([(step, value + (away if step >= since else 0.0)) for step, value in points])


def medians(curve: Curve, sizes: list[int]) -> Curve:
    """The same as reports every few seconds tell it: over windows of these sizes, in turn."""
    points, left, place = [], list(curve.points), 0
    while left:
        size = sizes[place % len(sizes)]
        window, left, place = left[:size], left[size:], place + 1
        points.append((window[-1][0], sorted(value for _, value in window)[len(window) // 2]))
    return Curve(points, is_single=False)


def test_equal_to_the_last_bit() -> None:
    found = compare_values(losses(1, range(1, 501)), losses(1, range(1, 501)))
    assert found is not None and found.is_equal and found.differs_from is None
    assert value_words(found) == "equal to the last bit at all 500 steps that both have"


def test_steps_that_are_not_recorded_are_told() -> None:
    """Of a quick run not every step is: 44 equal ones of 1 to 500 must not read as if there were no more."""
    whole, some = losses(1, range(1, 501)), losses(1, range(1, 501))
    some.points[:] = [point for point in some.points if point[0] < 35 or point[0] % 50 == 0]
    found = compare_values(whole, some)
    assert found is not None
    all_equal = "equal to the last bit at all 44 steps that both have"
    assert value_words(found) == f"{all_equal} (steps 1 to 500: 44 of them are recorded in both)"
    other = Curve([(step, value + (1e-15 if step > 40 else 0.0)) for step, value in some.points])
    found = compare_values(whole, other)
    assert found is not None and value_words(found).startswith(
        "equal to the last bit for 34 steps; from step 50 on they differ (steps 1 to 500: 44 of them are recorded"
    )


def test_equal_until_a_step() -> None:
    b = losses(1, range(1, 501), away=1e-15, since=413)
    found = compare_values(losses(1, range(1, 501)), b)
    assert found is not None
    assert (found.equal, found.unequal_from, found.differs_from) == (412, 413, None)
    assert value_words(found).startswith(
        "equal to the last bit for 412 steps; from step 413 on they differ; by no more"
    )


def test_equal_until_a_step_and_then_far_off() -> None:
    found = compare_values(losses(1, range(1, 801)), losses(1, range(1, 801), away=0.5, since=413))
    assert found is not None and found.unequal_from == 413
    assert found.differs_from is not None and abs(found.differs_from - 413) <= 800 / 32
    assert found.final is not None and found.final[1] - found.final[0] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("seed", range(2, 22))
def test_another_seed_is_noise(seed: int) -> None:
    found = compare_values(losses(1, range(1, 1001)), losses(seed, range(1, 1001)))
    assert found is not None and (found.equal, found.unequal_from, found.differs_from) == (0, 1, None)


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_that_go_together_are_noise(seed: int) -> None:
    """Losses of steps that lie side by side are no independent draws."""

    def walk(number: int) -> Curve:
        noise, value, points = random.Random(number), 0.0, []
        for step in range(1, 1001):
            value = 0.6 * value + noise.gauss(0, 0.04)
            points.append((step, course(step) + value))
        return Curve(points)

    found = compare_values(walk(seed), walk(1000 + seed))
    assert found is not None and found.differs_from is None


@pytest.mark.parametrize("seed", range(20))
def test_other_intervals_are_no_difference(seed: int) -> None:
    """One machine takes twice as long a step: its medians are over half as many."""
    a, b = losses(seed, range(1, 2001)), losses(50 + seed, range(1, 2001))
    found = compare_values(medians(a, [40, 37]), medians(b, [20, 22, 19]))
    assert found is not None and found.equal is None and found.differs_from is None and found.is_noise_known


def test_another_level_shows_through_other_intervals() -> None:
    a, b = losses(1, range(1, 2001)), losses(2, range(1, 2001), away=0.3, since=1000)
    found = compare_values(medians(a, [40, 37]), medians(b, [20, 22, 19]))
    assert found is not None and found.differs_from is not None and 900 <= found.differs_from <= 1150
    assert value_words(found).startswith("medians over some steps each, which are not compared bit by bit")


def test_other_intervals_where_a_loss_falls_evenly() -> None:
    """There is no noise, and a median is told at the end of its window: of longer ones it lags further behind."""
    even = Curve([(step, 10.0 - step / 500) for step in range(1, 4001)])
    found = compare_values(medians(even, [100]), medians(even, [37]))
    assert found is not None and found.differs_from is None


def test_a_stretch_alone_is_no_other_course() -> None:
    a, b = losses(1, range(1, 1601)), losses(1, range(1, 1601))
    b.points[802:848] = [(step, value + 0.5) for step, value in b.points[802:848]]
    found = compare_values(a, b)
    assert found is not None and (found.unequal_from, found.differs_from) == (803, None)


def test_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    found = compare_values(losses(1, range(1, 1001)), losses(1, range(1, 301)))
    assert found is not None and found.is_equal and (found.last_step, found.common) == (300, 300)


def test_a_resumed_run_goes_on_from_where_it_was() -> None:
    """It went back to step 40 and did 41 to 60 again: what counts is what it went on with."""
    points: list[tuple[int, float]] = []
    for step in [*range(1, 61), *range(41, 101)]:
        add_point(points, step, course(step))
    assert [step for step, _ in points] == list(range(1, 101))
    found = compare_values(Curve(points), Curve([(step, course(step)) for step in range(1, 101)]))
    assert found is not None and found.is_equal


def test_few_values_say_nothing_about_noise() -> None:
    found = compare_values(losses(1, range(1, 6)), losses(2, range(1, 6)))
    assert found is not None and not found.is_noise_known and found.differs_from is None
    assert "too few values to tell noise from more" in value_words(found)


def test_nan_in_one_alone_is_more_than_noise() -> None:
    a, b = losses(1, range(1, 101)), losses(1, range(1, 101))
    b.points[60:] = [(step, math.nan) for step, _ in b.points[60:]]
    found = compare_values(a, b)
    assert found is not None and (found.equal, found.unequal_from, found.differs_from) == (60, 61, 61)
    both = compare_values(b, b)
    assert both is not None and both.is_equal


@pytest.mark.parametrize(
    ("a", "b"), [([], [(1, 2.0)]), ([(1, 2.0)], []), ([], []), ([(1, 2.0), (2, 2.0)], [(5, 1.0), (9, 1.0)])]
)
def test_nothing_in_common(a: list[tuple[int, float]], b: list[tuple[int, float]]) -> None:
    assert compare_values(Curve(a), Curve(b)) is None
    assert compare_rates(Curve(a), Curve(b)) is None


def test_numbers_at_the_ends_of_what_there_is() -> None:
    huge = [(step, 1.7e308 if step % 2 else -1.7e308) for step in range(1, 101)]
    zeros = [(step, 0.0) for step in range(1, 101)]
    for a, b in ((huge, zeros), (zeros, huge), (zeros, [(step, -0.0) for step, _ in zeros])):
        found = compare_values(Curve(a), Curve(b))
        assert found is not None
        value_words(found)


# Learning rates ---------------------------------------------------------------------------------------------------


def rate(step: int, peak: float = 1e-3, warm_up: int = 100) -> float:
    return peak * min(step / warm_up, 1.0) * (0.5 + 0.5 * math.cos(math.pi * step / 2000))


def rates(steps: range, peak: float = 1e-3, warm_up: int = 100) -> Curve:
    return Curve([(step, rate(step, peak, warm_up)) for step in steps])


@pytest.mark.parametrize("other", [range(1, 1001), range(3, 1001, 7), range(10, 900, 11), range(13, 500, 37)])
def test_the_same_schedule_read_at_other_steps(other: range) -> None:
    found = compare_rates(rates(range(5, 1001, 5)), rates(other))
    assert found is not None and found.differs_from is None


def test_another_peak() -> None:
    found = compare_rates(rates(range(5, 1001, 5)), rates(range(7, 1001, 7), peak=2e-3))
    assert found is not None and found.differs_from is not None and found.differs_from <= 35


def test_another_schedule_from_a_step_on() -> None:
    a = rates(range(5, 1001, 5))
    b = Curve([(step, value if step < 500 else value / 10) for step, value in rates(range(7, 1001, 7)).points])
    found = compare_rates(a, b)
    assert found is not None and found.differs_from is not None and 490 <= found.differs_from <= 520


def test_a_constant_rate_that_is_a_little_off() -> None:
    a = Curve([(step, 1e-3) for step in range(1, 50)])
    found = compare_rates(a, Curve([(step, 1.001e-3) for step in range(1, 50)]))
    assert found is not None and found.differs_from == 1


def noisy(seed: int, share: float) -> Curve:
    """Losses of tiny batches: they scatter by half of what they are."""
    noise = random.Random(seed)
    return Curve([(step, share * math.exp(noise.gauss(0, 0.6)) / (1 + step / 60)) for step in range(1, 401)])


def test_what_is_far_apart_for_long_is_told_though_each_stretch_may_be_noise() -> None:
    apart = [compare_values(noisy(seed, 1.0), noisy(seed + 1000, 0.55)) for seed in range(40)]
    assert sum(found is not None and found.differs_from is not None for found in apart) >= 30
    alike = [compare_values(noisy(seed, 1.0), noisy(seed + 1000, 1.0)) for seed in range(200)]
    assert [found.differs_from for found in alike if found is not None and found.differs_from is not None] == []
