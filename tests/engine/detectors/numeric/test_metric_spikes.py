"""What leaps up and stays there: told once, with what it was before, and over when it comes back."""

from __future__ import annotations

import math

import pytest

from guardrun.supervisor.engine.detectors.numeric import metric_spikes
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import ERROR, Told
from tests.engine.detectors.numeric.curves import (
    EVERYBODY,
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
    without_norm,
)
from tests.engine.detectors.numeric.training import Training, culprits, only


def diverging(seed: int, at: int) -> Curve:
    """A learning rate that is too high: within 30 steps the loss is back where it began, and the norm a hundredfold."""
    return scaled(
        plain(seed),
        lambda rank, step: 1 + 3.5 / (1 + math.exp(-(step - at - 15) / 4)) if step > at else 1,
        lambda rank, step: min(100.0, 1.4 ** min(20, max(0, step - at))),
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_that_stays_high(told: Told, seed: int) -> None:
    told.running(ranks=4)
    Training(told, 4).go(scaled(plain(seed), leap(700, 3)), 1300)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("numeric", "loss_spike", "none")
    assert (incident.step, culprits(incident)) == (700, [])
    assert incident.recovered_s is None and "learning rate" in incident.advice


def test_all_that_is_known_is_said(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(scaled(plain(1, noise=0.0), leap(700, 3), leap(700, 1.1)), 1300)
    incident = only(told)
    assert incident.summary.startswith("The loss is 6.9")
    assert " on all 4 ranks since step 700, where 2." in incident.summary
    assert incident.summary.endswith(f"and has not come back in {incident.evidence['steps_since']} steps.")
    assert metric_spikes.HEAL_STEPS <= incident.evidence["steps_since"] <= 450
    evidence = incident.evidence
    assert (evidence["value"], evidence["ranks"], evidence["first_step"]) == ("loss", "0-3", 700)
    assert evidence["usual"] == pytest.approx(2.4, abs=0.1) and evidence["now"] == pytest.approx(6.9, abs=0.2)
    assert evidence["batches"] == {"0": 700, "1": 700, "2": 700, "3": 700}
    assert evidence["learning_rate"] == 1e-3
    assert [text[:12] for text in training.said] == ["incident 001"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_second", [1.0, 20.0, 200.0])
def test_gradients_that_explode_and_the_loss_follows(told: Told, seed: int, per_second: float) -> None:
    told.running(ranks=3)
    at = 700 + 13 * seed
    Training(told, 3, per_second=per_second).go(diverging(seed, at), at + max(300, int(60 * per_second)))
    incident = only(told)
    assert (incident.kind, incident.cause) == ("numeric", "grad_explosion")
    assert incident.step is not None and at < incident.step <= at + 15, "the first that is far above the usual"
    assert "the loss went from 2." in incident.summary and culprits(incident) == []
    assert incident.evidence["loss"]["now"] > 2 * incident.evidence["loss"]["usual"]


def test_a_loss_that_had_been_falling_until_it_leapt(told: Told) -> None:
    """The limit for a single step is six times the usual loss there; what stays a little below has not come back."""
    told.running(ranks=2)
    falling = without_norm(plain(3, start=14, floor=0.4, tau=100, noise=0.2))
    curve = scaled(falling, pieces((361, 110), (363, 45), (450, 17)))
    training = Training(told, 2, per_second=60).go(curve, 3000)
    assert (only(told).cause, only(told).step) == ("loss_spike", 361)
    assert training.remarks == []


def test_gradients_out_of_all_proportion(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(scaled(plain(4), lambda rank, step: 1.0, leap(600, 300)), 1300)
    assert (only(told).cause, only(told).step) == ("grad_explosion", 600)


def test_without_losses(told: Told) -> None:
    told.running(ranks=2)
    curve = scaled(plain(5), lambda rank, step: 1.0, leap(600, 300))
    Training(told, 2).go(lambda rank, step: Values(None, curve(rank, step).grad_norm), 1300)
    assert (only(told).cause, only(told).step) == ("grad_explosion", 600)


def test_seen_every_ten_steps(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(every(scaled(plain(6), leap(2503, 4)), 10), 3300)
    assert (only(told).cause, only(told).step) == ("loss_spike", 2510)


def test_one_step_in_a_minute(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2, per_second=1 / 60).go(scaled(without_norm(plain(7)), leap(300, 4)), 450)
    assert (only(told).cause, only(told).step) == ("loss_spike", 300)


def test_a_loss_below_zero(told: Told) -> None:
    told.running(ranks=2)
    draw = Noise(8)
    curve: Curve = lambda rank, step: Values(-8 + 0.2 * draw(rank, step) + (14 if step >= 700 else 0))  # noqa: E731
    Training(told, 2).go(curve, 1300)
    incident = only(told)
    assert (incident.cause, incident.step) == ("loss_spike", 700)
    assert "The loss is 5.9" in incident.summary or "The loss is 6" in incident.summary
    assert "where -8" in incident.summary or "where -7.9" in incident.summary


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_whose_batch_began_it(told: Told, seed: int) -> None:
    """Its loss is far off in one step; from the next on the parameters that it has spoilt make everybody's so."""
    told.running(ranks=4)
    rank = seed + 1
    spoilt = scaled(plain(seed), leap(801, 4), leap(800, 150))
    curve = scaled(spoilt, lambda of, step: 30.0 if of == rank and step == 800 else 1.0)
    Training(told, 4).go(curve, 1500)
    incident = only(told)
    assert (incident.cause, incident.step, culprits(incident)) == ("grad_explosion", 800, [rank])
    assert f"it began with the loss of rank {rank} on node-a (batch 800)" in incident.summary


@pytest.mark.parametrize("before", [5, 20, 50, 150, 230])
def test_a_single_spike_before_it_is_not_its_beginning(told: Told, before: int) -> None:
    """In the same report of 200 steps, or in the one before, with a median that is in order."""
    told.running(ranks=2)
    spike = scaled(without_norm(plain(17)), lambda rank, step: 5.0 if step == 1350 - before else 1.0)
    Training(told, 2, per_second=100).go(scaled(spike, leap(1350, 4)), 5000)
    expected = 1345 if before == 5 else 1330 if before == 20 else 1350
    assert (only(told).cause, only(told).step) == ("loss_spike", expected)


@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_the_first_by_chance(told: Told, seed: int) -> None:
    """All losses rise within some steps; one of them is the first beyond the limit."""
    told.running(ranks=4)
    rise = scaled(plain(seed, noise=0.08), lambda rank, step: 1 + min(4.0, max(0, step - 700) / 10))
    Training(told, 4).go(rise, 1400)
    assert (only(told).cause, culprits(only(told))) == ("loss_spike", [])


def test_what_comes_back_is_over(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(scaled(plain(9), leap(700, 4, lasts=600)), 1280)
    assert only(told).recovered_s is None
    training.go(plain(9), 200)
    assert only(told).recovered_s is not None
    assert training.said[-1].startswith("incident 001 is over: the loss is back at 2.")


def test_norms_that_come_back_are_over(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(scaled(plain(10), lambda rank, step: 1.0, leap(700, 90, lasts=600)), 1280)
    training.go(plain(10), 200)
    assert only(told).recovered_s is not None
    assert training.said[-1].startswith("incident 001 is over: the gradient norm is back at ")


def test_half_way_back_is_not_over(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(scaled(plain(11), pieces((700, 5), (1250, 1.95))), 1700)
    assert only(told).recovered_s is None


def test_told_a_few_times_a_run(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2)
    for _ in range(6):
        training.go(scaled(plain(12), leap(training.step + 700, 6)), 1300)
        training.go(plain(12), 200)
    assert [incident.cause for incident in told.incidents.values()] == ["loss_spike"] * metric_spikes.MOST_REPORTED


def test_a_supervisor_that_is_started_anew_goes_on(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(scaled(plain(18), leap(700, 4)), 760)
    training.told = told.branch()
    training.go(scaled(plain(18), leap(700, 4)), 600)
    assert (only(training.told).cause, only(training.told).step) == ("loss_spike", 700)
    training.told.check()


def test_most_ranks_have_to_be_so(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4)
    training.go(scaled(plain(13), lambda rank, step: 8 if rank < 2 and step > 700 else 1), 1300)
    assert told.incidents == {} and training.remarks == []
    training.go(scaled(plain(13), lambda rank, step: 8 if rank < 3 and step > 2000 else 1), 1300)
    assert (only(told).cause, only(told).evidence["ranks"]) == ("loss_spike", "0-2")


def test_what_becomes_nan_is_told_as_that(told: Told) -> None:
    told.running(ranks=2)
    curve = instead(diverging(14, 700), lambda rank, step: Values(NAN, NAN) if step >= 760 else None)
    Training(told, 2).go(curve, 1100)
    assert (only(told).cause, only(told).step) == ("nan_loss", 760)


def test_a_step_that_is_nan_meanwhile_hides_nothing(told: Told) -> None:
    told.running(ranks=2)
    curve = instead(
        scaled(plain(19), leap(700, 4)), lambda rank, step: Values(NAN, NAN) if step in (650, 706, 790) else None
    )
    Training(told, 2).go(curve, 1300)
    assert (only(told).cause, only(told).step) == ("loss_spike", 700)


def test_an_attempt_begins_anew(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(scaled(plain(15), leap(700, 4)), 760)
    told.crashed(error=ERROR)
    told.restarted()
    Training(told, 2).go(plain(15), 500)
    assert [incident.cause for incident in told.incidents.values()] == ["exception"]


def test_a_norm_alone_with_losses_as_they_were(told: Told) -> None:
    """Forty times is much, and harms nobody."""
    told.running(ranks=2)
    draw = Noise(16)
    level: Curve = lambda rank, step: Values(  # noqa: E731
        2.3 * math.exp(0.03 * draw(rank, step)), (40 if step > 700 else 1) * math.exp(0.2 * draw(EVERYBODY, step))
    )
    training = Training(told, 2).go(level, 1400)
    assert told.incidents == {} and training.remarks == []


# The run's spike score -----------------------------------------------------------------------------------------------


def test_the_runs_spike_score_is_of_all_ranks_and_attempts(told: Told) -> None:
    told.running(ranks=2)
    steady = without_norm(plain(3, tau=1.0))
    training = Training(told, 2, per_second=20).go(steady, 900)
    assert told.engine.summary(told.now_s).spike_score == {}, "a thousand values have to come first"
    training.go(scaled(steady, leap(1501, 3)), 1300)
    score = told.engine.summary(told.now_s).spike_score
    assert 2 * 1000 < score["losses"] <= 2 * 1200 and set(score) == {"loss", "losses"}
    spikes = score["loss"] * score["losses"]
    assert 2 <= round(spikes, 2) <= 2 * 30, "after the first ones they lie within the window, which they have widened"
    assert only(told).evidence["spike_score"]["loss"] > 0
    told.crashed(error=ERROR)
    told.restarted()
    assert told.engine.summary(told.now_s).spike_score == score
    Training(told, 2, per_second=20).go(steady, 1500)
    again = told.engine.summary(told.now_s).spike_score
    assert score["losses"] + 2 * 300 < again["losses"] <= score["losses"] + 2 * 500
    assert again["loss"] * again["losses"] == pytest.approx(spikes, abs=0.01)


# Gradients by group of modules ----------------------------------------------------------------------------------------


def grown(rank: int, step: int, *groups: tuple[str, float, float], attempt: int = 0) -> ev.GradientsGrew:
    found = [ev.GroupNorm(*group) for group in groups]
    return ev.GradientsGrew(attempt=attempt, global_rank=rank, step=step, groups=found, count=9)


def test_the_group_whose_gradients_had_grown_most_is_named(told: Told) -> None:
    told.running(ranks=2)
    curve = scaled(plain(4), lambda rank, step: 1.0, leap(600, 300))
    training = Training(told, 2).go(curve, 590)
    training.hear(told.tell(grown(1, 610, ("layers.7", 0.5, 150.0), ("layers.6", 0.5, 1.0)), told.now_s + 1))
    assert told.incidents == {}
    training.go(curve, 700)
    incident = only(told)
    assert incident.cause == "grad_explosion"
    assert incident.summary.endswith("; of all gradients those of layers.7 had grown most.")
    assert incident.evidence["gradient_groups"] == [
        {"group": "layers.7", "usual": 0.5, "now": 150.0},
        {"group": "layers.6", "usual": 0.5, "now": 1.0},
    ]
    assert incident.evidence["gradient_groups_of"] == {"rank": 1, "step": 610}


def test_the_culprits_own_groups_count(told: Told) -> None:
    told.running(ranks=3)
    spoilt = scaled(plain(1), leap(801, 4), leap(800, 150))
    curve = scaled(spoilt, lambda of, step: 30.0 if of == 1 and step == 800 else 1.0)
    training = Training(told, 3).go(curve, 790)
    for rank, name in enumerate(("head", "layers.3", "embed")):
        training.hear(told.tell(grown(rank, 802, (name, 1.0, 5.0)), told.now_s + 0.1))
    training.go(curve, 700)
    incident = only(told)
    assert culprits(incident) == [1] and incident.evidence["gradient_groups_of"] == {"rank": 1, "step": 802}
    assert incident.evidence["gradient_groups"][0]["group"] == "layers.3"


def test_what_had_grown_long_before_or_in_another_attempt_is_not_named(told: Told) -> None:
    told.running(ranks=2)
    curve = scaled(without_norm(plain(1)), leap(700, 3))
    training = Training(told, 2).go(curve, 660)
    training.hear(told.tell(grown(0, 660, ("a", 1.0, 5.0)), told.now_s + 0.1))
    training.hear(told.tell(grown(1, 700), told.now_s + 0.1))
    training.go(curve, 640)
    assert "gradient_groups" not in only(told).evidence and "of all gradients" not in only(told).summary
    told.crashed(error=ERROR)
    told.restarted()
    training.hear(told.tell(grown(0, 9, ("a", 1.0, 5.0)), told.now_s + 0.1))
    assert told.state.detectors.numeric.metric_spikes.grown == {}
    training.hear(told.tell(grown(0, 9, ("a", 1.0, 5.0), attempt=1), told.now_s + 0.1))
    assert set(told.state.detectors.numeric.metric_spikes.grown) == {0}
