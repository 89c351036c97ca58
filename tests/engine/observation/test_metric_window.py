"""What is usual, and which steps are odd."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from guardrun.supervisor.engine.model.events import MAX_ODD, OddStep, TrainingMetrics
from guardrun.supervisor.engine.observation import metric_window as mw
from guardrun.supervisor.engine.observation.metric_window import GRAD_NORM, LOSS, SKIPPED, MetricWindow

NAN, INF = math.nan, math.inf
BOTH = LOSS | GRAD_NORM


def losses(window: MetricWindow, values: list[float], first: int = 1) -> list[OddStep]:
    """Add them, one a step, and give those that are odd, as reports list them."""
    found: list[OddStep] = []
    for step, value in enumerate(values, first):
        window.add(step, value, 0.0, LOSS, step)
        if window._odd:
            found += report(window).odd
    return found


def noisy(count: int, level: float = 2.0, noise: float = 0.05, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [level * math.exp(noise * chance.gauss(0, 1)) for _ in range(count)]


def report(window: MetricWindow, rate: float | None = 1e-3, skipped: int = 0) -> TrainingMetrics:
    metrics = window.take_report(rate, skipped)
    assert metrics is not None
    return metrics


def test_a_report_has_what_came_since_the_last() -> None:
    window = MetricWindow()
    assert window.take_report(1e-3, 0) is None
    for step, (loss, norm) in enumerate([(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)], 7):
        window.add(step, loss, norm, BOTH, step + 1)
    assert not window.is_urgent
    assert report(window, skipped=4) == TrainingMetrics(7, 9, 2.0, 2.0, 1e-3, skipped=4)
    assert window.take_report(1e-3, 4) is None
    window.add(10, 5.0, NAN, LOSS, 11)
    assert report(window, NAN) == TrainingMetrics(10, 10, 5.0)
    window.add(11, NAN, 0.5, GRAD_NORM, 12)
    assert report(window, None) == TrainingMetrics(11, 11, None, 0.5)


def test_what_is_usual_is_that_of_before() -> None:
    window = MetricWindow()
    losses(window, [2.0] * 128)
    assert report(window).usual_loss is None
    losses(window, [4.0] * 32 + [100.0], 129)
    window.add(162, 4.0, 0.0, LOSS, 162)
    assert report(window).usual_loss == 2.0


@pytest.mark.parametrize(
    ("loss", "norm", "flags", "told"),
    [
        (NAN, 1.0, BOTH, mw.LOSS_NAN),
        (INF, 1.0, BOTH, mw.LOSS_INFINITE),
        (-INF, 1.0, BOTH, mw.LOSS_INFINITE),
        (2.0, NAN, BOTH, mw.NORM_NAN),
        (2.0, INF, BOTH, mw.NORM_INFINITE),
        (NAN, INF, BOTH, mw.LOSS_NAN | mw.NORM_INFINITE),
        (0.0, 1.0, BOTH | mw.LOSS_NAN, mw.LOSS_NAN),
        (2.0, 0.0, BOTH | mw.NORM_INFINITE, mw.NORM_INFINITE),
        (NAN, 1.0, GRAD_NORM, 0),
        (2.0, INF, LOSS, 0),
        (2.0, INF, BOTH | SKIPPED, 0),
        (2.0, NAN, BOTH | SKIPPED | mw.NORM_NAN, 0),
        (INF, NAN, BOTH | SKIPPED, 0),
        (NAN, NAN, BOTH | SKIPPED, mw.LOSS_NAN),
        (0.0, 0.0, 0, 0),
    ],
)
def test_what_is_not_finite_is_odd_from_the_first_step_on(loss: float, norm: float, flags: int, told: int) -> None:
    window = MetricWindow()
    window.add(1, loss, norm, flags, 3)
    assert window.is_urgent is bool(told)
    metrics = report(window)
    assert not window.is_urgent
    assert metrics.nonfinite == bool(told)
    assert [step.flags & mw.NONFINITE for step in metrics.odd] == ([told] if told else [])
    for step in metrics.odd:
        assert (step.step, step.batch, step.flags & ~mw.NONFINITE) == (1, 3, flags & ~mw.NONFINITE)
        assert step.loss is None or math.isfinite(step.loss)
        assert step.grad_norm is None or math.isfinite(step.grad_norm)
    assert metrics.loss is None or math.isfinite(metrics.loss)
    window.add(2, 1.0, 1.0, BOTH, 4)
    assert report(window).nonfinite == bool(told), "counted in the attempt"


def test_far_above_the_usual() -> None:
    window = MetricWindow()
    assert losses(window, noisy(300)) == []
    (step,) = losses(window, [8.0], 301)
    assert (step.step, step.loss, step.grad_norm, step.flags, step.batch) == (301, 8.0, None, LOSS, 301)
    assert step.loss_sigmas == pytest.approx(math.log(4) / 0.05, rel=0.35) and step.norm_sigmas == 0.0
    assert losses(window, [3.0, 0.01, 1e-9], 302) == [], "1.5 times as much, and less"


def test_norms_have_their_own_window() -> None:
    window = MetricWindow()
    for step, norm in enumerate([*noisy(200, 1.0), 4.5, 6.0], 1):
        window.add(step, 2.0, norm, BOTH, step)
    (step,) = report(window).odd
    assert (step.step, step.grad_norm, step.loss_sigmas) == (202, 6.0, 0.0) and step.norm_sigmas > 6


@pytest.mark.parametrize("first", [1, 5001])
def test_the_start_from_scratch_is_left_alone(first: int) -> None:
    """90 values: after a checkpoint they are enough."""
    window = MetricWindow()
    assert losses(window, noisy(96), first) == []
    assert len(losses(window, [9.0], first + 96)) == (first > 1)


def test_too_few_values() -> None:
    assert losses(MetricWindow(), [*noisy(mw.WARM_UP - 1), 90.0], 5000) == []


def test_the_next_record_is_near_the_last() -> None:
    """Tails: 1.25 times the highest of the window is needed, whatever the deviations are."""
    window = MetricWindow()
    losses(window, [*noisy(200), 3.9, *noisy(40)])
    assert losses(window, [4.7], 300) == []
    assert [step.loss for step in losses(window, [6.0], 301)] == [6.0]


def test_a_level_that_lasts_becomes_the_usual() -> None:
    window = MetricWindow()
    losses(window, noisy(300))
    odd = losses(window, noisy(200, 9.0), 301)
    assert len(odd) == mw.SETTLES
    report(window)
    window.add(501, 9.0, 0.0, LOSS, 501)
    usual = report(window).usual_loss
    assert usual == pytest.approx(9.0, rel=0.1)
    assert len(losses(window, [30.0], 502)) == 1


def test_half_a_window_makes_the_usual() -> None:
    window = MetricWindow()
    losses(window, noisy(300))
    for count, level in ((mw.WINDOW // 2 - 20, 2.0), (60, 9.0)):
        losses(window, noisy(count, 9.0), 301)
        report(window)
        window.add(600, 9.0, 0.0, LOSS, 600)
        assert report(window).usual_loss == pytest.approx(level, rel=0.15)


def test_single_odd_values_never_do() -> None:
    window = MetricWindow()
    values = [20.0 if step % 50 == 0 and step > 300 else value for step, value in enumerate(noisy(3000), 1)]
    assert [step.step for step in losses(window, values)] == list(range(350, 3001, 50))


@pytest.mark.parametrize(
    ("usual", "fine", "odd"),
    [
        (lambda draw: -3 + 0.2 * draw, -0.5, 9.0),
        (lambda draw: 0.05 * draw, 0.25, 1.0),
        (lambda draw: -60 + draw, -40.0, 70.0),
        (lambda draw: max(0.0, draw - 1), 1.6, 60.0),
        (lambda draw: 1e-6 * math.exp(0.3 * draw), 3e-6, 1e-4),
    ],
)
def test_losses_that_are_not_positive(usual: Callable[[float], float], fine: float, odd: float) -> None:
    window = MetricWindow()
    chance = random.Random(5)
    assert losses(window, [usual(max(-2.5, min(2.5, chance.gauss(0, 1)))) for _ in range(300)]) == []
    assert losses(window, [fine], 301) == []
    (step,) = losses(window, [odd], 302)
    assert step.loss_sigmas >= mw.SIGMAS


@pytest.mark.parametrize(("value", "is_odd"), [(0.0, False), (1.5, True), (-1.5, True)])
def test_equal_values(value: float, is_odd: bool) -> None:
    """Nothing tells how much is much beside zeros."""
    window = MetricWindow()
    assert losses(window, [value] * 300) == []
    assert bool(losses(window, [50.0], 301)) is is_odd


def test_huge_values() -> None:
    window = MetricWindow()
    assert losses(window, [1.7e308] * 200) == []
    assert len(losses(window, [1e308, 1e-300, 1.7e308], 201)) == 0


def test_a_report_lists_a_few_and_always_what_is_not_finite() -> None:
    window = MetricWindow()
    losses(window, noisy(300))
    for step in range(301, 321):
        window.add(step, 50.0 * 2**step if step < 311 else NAN, 0.0, LOSS, step)
    metrics = report(window)
    assert [step.step for step in metrics.odd] == [301, 302, 303, 304, 311, 312, 313, 314]
    assert len(metrics.odd) == MAX_ODD and metrics.nonfinite == 10


def test_what_is_odd_all_the_time_is_not_urgent_for_ever() -> None:
    """A run that is NaN since noon must not fill its journal."""
    window = MetricWindow()
    listed = []
    for turn in range(20):
        for step in range(10):
            window.add(10 * turn + step + 1, NAN, 0.0, LOSS, 1)
        assert window.is_urgent is (turn < mw.MAX_URGENT)
        metrics = report(window)
        listed.append(len(metrics.odd))
        assert metrics.odd[0].step == 10 * turn + 1 and metrics.nonfinite == 10 * turn + 10
    assert listed == [MAX_ODD] * mw.MAX_URGENT + [mw.MAX_ODD_LATER] * 12
    losses(window, [1.0], 201)
    report(window)
    window.add(202, NAN, 0.0, LOSS, 1)
    assert window.is_urgent


def test_nothing_grows_without_end() -> None:
    window = MetricWindow()
    for step in range(1, 20_000):
        window.add(step, 2.0, 1.0, BOTH, step)
    metrics = report(window)
    assert (metrics.first, metrics.last, metrics.loss) == (1, 19_999, 2.0)
    assert len(window._losses) == 0
