"""Curves of daily life: no incident, and hardly a remark."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import ERROR, Told
from tests.engine.detectors.numeric.curves import (
    EVERYBODY,
    INF,
    NAN,
    Curve,
    Noise,
    Values,
    every,
    instead,
    leap,
    pieces,
    plain,
    scaled,
    spread,
)
from tests.engine.detectors.numeric.training import Training, resume

SEEDS = range(3)
RANKS = 3
STEPS = 1500


def warmed_up(seed: int) -> Curve:
    """The learning rate rises for 300 steps: the loss stands first, and the norm rises and falls."""
    draw = Noise(seed)

    def curve(rank: int, step: int) -> Values:
        loss = 11 * math.exp(-max(0, step - 150) / 600) + 2
        norm = 0.3 + 8 * math.exp(-(((step - 300) / 150) ** 2))
        return Values(loss * math.exp(0.03 * draw(rank, step)), norm * math.exp(0.25 * draw(EVERYBODY, step)))

    return curve


def zero_crossing(seed: int) -> Curve:
    """A policy's loss: around zero, with heavy tails; its norm, too, has them."""
    draw = Noise(seed, tails=0.1)
    return lambda rank, step: Values(
        0.02 * math.sin(step / 90) + 0.05 * draw(rank, step), math.exp(0.7 * draw(EVERYBODY, step))
    )


def adversarial(seed: int) -> Curve:
    draw = Noise(seed)
    return lambda rank, step: Values(
        1.2 + math.sin(step / 23) + 0.15 * abs(draw(rank, step)) + (1.5 if step % 97 < 5 else 0),
        2 * math.exp(0.6 * draw(EVERYBODY, step) + math.sin(step / 23)),
    )


def value_function(seed: int) -> Curve:
    """Of returns that grow: its loss becomes twenty times as large within 1,500 steps."""
    draw = Noise(seed, tails=0.05)
    return lambda rank, step: Values(0.1 * math.exp(step / 500 + 0.5 * draw(rank, step)), None)


def hinge(seed: int) -> Curve:
    """Mostly zero."""
    draw = Noise(seed)
    return lambda rank, step: Values(max(0.0, draw(rank, step) - 0.8), max(0.0, draw(EVERYBODY, step) - 0.5))


def started_with_scale(seed: int) -> Curve:
    """A GradScaler that begins too high, and tries a higher one every 2,000 steps."""
    return instead(
        plain(seed),
        lambda rank, step: (
            Values(9.0, INF if step % 2 else NAN, is_skipped=True) if step <= 10 or step == 1200 else None
        ),
    )


def half_precision_losses(seed: int) -> Curve:
    """The loss itself overflows by the scale."""
    return instead(plain(seed), lambda rank, step: Values(INF, NAN, is_skipped=True) if step <= 14 else None)


def alternating(seed: int) -> Curve:
    """Two tasks take turns, step by step."""
    return scaled(plain(seed), lambda rank, step: 6.0 if step % 3 == 0 else 1.0, lambda rank, step: 1 + step % 3)


def long_sequences(seed: int) -> Curve:
    """A sum over tokens, of which there are one to six times as many."""
    draw = Noise(seed)
    return scaled(plain(seed), lambda rank, step: 1 + 5 * (math.atan(draw(rank, step)) / math.pi + 0.5))


def log_likelihood(seed: int) -> Curve:
    """Falls through zero to -60."""
    draw = Noise(seed)
    return lambda rank, step: Values(20 - 80 * (1 - math.exp(-step / 300)) + draw(rank, step), None)


def explores(seed: int) -> Curve:
    """Heavy tails at a level below zero."""
    draw = Noise(seed, tails=0.15)
    return lambda rank, step: Values(-3 + 2 * draw(rank, step), math.exp(draw(EVERYBODY, step)))


def guarded(seed: int) -> Curve:
    """One batch in 400 makes a loss that is no number, and the script leaves the step out."""
    return instead(plain(seed), lambda rank, step: Values(NAN, NAN) if step % 400 == 7 else None)


def empty_batches(seed: int) -> Curve:
    """Rank 1 has nothing to learn from in every 20th step: what it shows as its loss is 0 / 0."""
    at_norm = plain(seed)
    return instead(
        plain(seed),
        lambda rank, step: Values(NAN, at_norm(rank, step).grad_norm) if rank == 1 and step % 20 == 0 else None,
    )


def epochs(seed: int) -> Curve:
    """Overfitting: the loss falls at the beginning of each epoch, and rises a little within."""
    return scaled(plain(seed, tau=60), lambda rank, step: 0.6 ** (step // 300) * (1 + (step % 300) / 1500))


def ever_smaller(seed: int) -> Curve:
    """To 1e-6, and noise by the share of that."""
    draw = Noise(seed)
    return lambda rank, step: Values(
        (math.exp(-step / 90) + 1e-6) * math.exp(0.3 * draw(rank, step)), 1e-3 * math.exp(0.5 * draw(EVERYBODY, step))
    )


def noisier(seed: int) -> Curve:
    """Batches become smaller."""
    before, after = plain(seed), plain(seed, noise=0.3, norm_noise=0.6)
    return lambda rank, step: (after if step > 700 else before)(rank, step)


def accumulated(seed: int) -> Curve:
    """A norm in every fourth step alone."""
    curve = plain(seed)
    return lambda rank, step: Values(curve(rank, step).loss, None if step % 4 else curve(rank, step).grad_norm)


DECOYS: dict[str, Callable[[int], Curve]] = {
    "a noisy fall": plain,
    "noise of a quarter": lambda seed: plain(seed, noise=0.25, norm_noise=0.6),
    "warm-up": warmed_up,
    "the learning rate is lowered": lambda seed: scaled(
        plain(seed), pieces((600, 0.8), (1000, 0.7)), pieces((600, 0.5), (1000, 0.4))
    ),
    "the learning rate is raised": lambda seed: scaled(plain(seed), leap(700, 1.6, heals=120), leap(700, 3, heals=60)),
    "harder data, 1.2 times": lambda seed: scaled(plain(seed), pieces((700, 1.2)), pieces((700, 1.5))),
    "harder data, 1.5 times": lambda seed: scaled(plain(seed), pieces((700, 1.5)), pieces((700, 2))),
    "harder data, 1.9 times": lambda seed: scaled(plain(seed), pieces((700, 1.9)), pieces((700, 2.5))),
    "a curriculum of many stages": lambda seed: scaled(plain(seed), lambda rank, step: 1 + 0.7 * ((step // 150) % 4)),
    "small batches": lambda seed: plain(seed, noise=0.5, tails=0.1, norm_noise=0.7),
    "very small batches": lambda seed: plain(seed, noise=0.9, tails=0.2, norm_noise=1.0),
    "smaller batches from a step on": noisier,
    "seen every 10 steps": lambda seed: every(plain(seed), 10),
    "seen every 50 steps": lambda seed: every(plain(seed), 50),
    "gradients accumulate": accumulated,
    "a policy's loss around zero": zero_crossing,
    "below zero, with heavy tails": explores,
    "a log-likelihood": log_likelihood,
    "a value function": value_function,
    "close to zero": ever_smaller,
    "mostly zero": hinge,
    "constant": lambda seed: lambda rank, step: Values(math.log(10), 0.0),
    "adversarial": adversarial,
    "a cyclic learning rate": lambda seed: scaled(
        plain(seed), lambda rank, step: 1 + 0.4 * math.sin(step / 60), lambda rank, step: 2 + math.sin(step / 60)
    ),
    "a GradScaler's start": started_with_scale,
    "half-precision losses": half_precision_losses,
    "two tasks in turn": alternating,
    "sums over sequences": long_sequences,
    "epochs": epochs,
    "ranks with levels of their own": lambda seed: scaled(plain(seed), spread([1, 3, 0.1])),
    "layers are unfrozen": lambda seed: scaled(plain(seed), lambda rank, step: 1.0, pieces((700, 14))),
    "the norm grows": lambda seed: scaled(plain(seed), lambda rank, step: 1.0, lambda rank, step: math.exp(step / 400)),
    "single spikes": lambda seed: scaled(
        plain(seed), lambda rank, step: 9 if step % 211 == 5 else 1, lambda rank, step: 40 if step % 211 == 5 else 1
    ),
    "one rank's bad data": lambda seed: scaled(plain(seed), lambda rank, step: 5 if rank == 1 and step > 700 else 1),
    "a script that leaves bad steps out": guarded,
    "empty batches": empty_batches,
}
MAY_REMARK = {"a script that leaves bad steps out": 3, "empty batches": 3, "single spikes": 1}


@pytest.mark.parametrize("name", DECOYS)
def test_curves_of_daily_life_are_left_alone(told: Told, name: str) -> None:
    for seed in SEEDS:
        run = Told()
        run.running(ranks=RANKS, rolls_back=True, resumes=True)
        training = Training(run, RANKS).go(DECOYS[name](seed), 7500 if "every 50" in name else STEPS)
        assert run.incidents == {}
        assert len(training.remarks) <= MAY_REMARK.get(name, 0), training.remarks
        if not seed:
            run.check()


@pytest.mark.parametrize("per_second", [0.2, 1.0, 200.0])
def test_slow_and_fast_steps_are_left_alone(told: Told, per_second: float) -> None:
    told.running(ranks=2)
    steps = 600 if per_second < 10 else 6000
    curve = scaled(plain(1, noise=0.1, tails=0.05), pieces((400, 1.8)))
    training = Training(told, 2, per_second=per_second).go(curve, steps)
    assert told.incidents == {} and training.remarks == []


@pytest.mark.parametrize("counts", [True, False])
def test_a_grad_scaler_that_begins_far_too_high(told: Told, counts: bool) -> None:
    """At a step a second, 30 steps are left out in a row; later one in 2,000 is."""
    told.running(ranks=2)
    left_out = Values(9.0, INF, is_skipped=True)
    training = Training(told, 2, per_second=1).go(lambda rank, step: left_out, 30, counts=counts)
    training.go(instead(plain(6), lambda rank, step: left_out if step == 400 else None), 600)
    assert told.incidents == {} and training.remarks == []


@pytest.mark.parametrize("per_second", [0.5, 20])
def test_a_loss_scaler_of_another_make(told: Told, per_second: float) -> None:
    """Nothing says that it leaves steps out; losses stay finite."""
    told.running(ranks=2)
    curve = instead(plain(9), lambda rank, step: Values(9.0, INF) if step <= 20 or step in (301, 302, 303) else None)
    training = Training(told, 2, per_second=per_second).go(curve, 600)
    assert told.incidents == {} and len(training.remarks) <= 2


@pytest.mark.parametrize("lasts_s", [2, 8, 15])
def test_a_burst_of_seconds(told: Told, lasts_s: int) -> None:
    """Thousands of steps at 200 a second: nobody could have acted on it."""
    told.running(ranks=2)
    training = Training(told, 2, per_second=200).go(scaled(plain(7), leap(3000, 5, lasts=200 * lasts_s)), 10000)
    assert told.incidents == {} and len(training.remarks) <= 1


def test_two_in_a_row_of_what_is_seen_every_200_steps(told: Told) -> None:
    told.running(ranks=2)
    curve = every(scaled(plain(8), lambda rank, step: 5 if step in (30000, 30200) else 1), 200)
    training = Training(told, 2, per_second=5).go(curve, 32000)
    assert told.incidents == {} and len(training.remarks) <= 1


def test_evaluations_leave_gaps(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2)
    for _ in range(6):
        training.go(plain(2), 250)
        told.step(10 + training.step, told.now_s + 10)
        told.now_s += 10.0
    assert told.incidents == {} and training.remarks == []


@pytest.mark.parametrize("base", [0, 5000], ids=["from scratch", "from a checkpoint"])
def test_a_start_again_is_no_spike(told: Told, base: int) -> None:
    """From scratch the loss begins at 11; after a checkpoint it is a little higher for a while."""
    told.running(ranks=2)
    Training(told, 2).go(plain(3), 800)
    told.crashed(error=ERROR)
    resume(told, base)
    after = scaled(plain(4), leap(base, 2.5, heals=15), leap(base, 6, heals=15)) if base else plain(4)
    training = Training(told, 2, step=base).go(after, 800)
    assert [incident.cause for incident in told.incidents.values()] == ["exception"]
    assert [text for text in training.remarks if "leapt" in text or "NaN" in text] == []
    assert told.phase is Phase.RUNNING and told.state.detectors.numeric.attempt == 1


def test_a_rank_without_values_is_none(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(plain(5), 900, silent={2})
    assert told.incidents == {} and training.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_that_heals_is_one_remark(told: Told, seed: int) -> None:
    told.running(ranks=2)
    curve = scaled(plain(seed), leap(700, 4, heals=40), leap(700, 20, heals=30))
    training = Training(told, 2, per_second=2).go(curve, 1000)
    assert told.incidents == {}
    (remark,) = training.remarks
    assert "the loss leapt to " in remark and " at step 700, where 2." in remark and "has come back by step 7" in remark
    for start in (1400, 1800, 2200, 2600, 3000, 3400):
        training.go(scaled(plain(seed), leap(start, 4, heals=40)), 400)
    assert told.incidents == {} and len(training.remarks) <= 3
