"""Values that are not finite: whose they are, since which step, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from guardrun.hooks.wire.metrics_page import NONFINITE, Flag
from guardrun.supervisor.engine.detectors.numeric import nan_loss
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation import metric_window
from tests.engine.conftest import ERROR, Told
from tests.engine.detectors.numeric.curves import (
    INF,
    NAN,
    Curve,
    Values,
    every,
    instead,
    leap,
    plain,
    poisoned,
    scaled,
    without_norm,
)
from tests.engine.detectors.numeric.training import Training, culprits, only, resume

CKPT = "/out/ckpt_40.pt"


def from_step(curve: Curve, step: int, values: Values) -> Curve:
    """All ranks have these values from a step on."""
    return instead(curve, lambda rank, at: values if at >= step else None)


def saved(told: Told, path: str, step: int) -> list[ac.Action]:
    return told.tell(ev.CheckpointSaved(attempt=told.attempt, global_rank=0, path=path, step=step, duration_s=0.1))


def test_flags_are_those_of_the_page() -> None:
    for flag in Flag:
        assert getattr(metric_window, flag.name) == flag
    assert metric_window.NONFINITE == NONFINITE


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        (poisoned(plain(1), 1, 812), "; the output of body.1 (Ratio) was the first that was not"),
        (from_step(plain(1), 812, Values(NAN, NAN)), "; on rank 0 the output of body.1 (Ratio) was the first that"),
    ],
    ids=["one rank", "all ranks"],
)
def test_the_module_where_it_began(told: Told, curve: Curve, said: str) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(curve, 810)
    for rank in range(2):
        told.tell(
            ev.BatchesNamed(
                attempt=0,
                global_rank=rank,
                step=812,
                loader="",
                why="",
                ahead=0,
                batches=[],
                origin="the output of body.1 (Ratio)",
            )
        )
    training.go(curve, 100)
    incident = only(told)
    assert said in incident.summary
    assert incident.evidence["origins"]["1"] == "the output of body.1 (Ratio)"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("per_second", [0.5, 3.0, 200.0])
def test_the_rank_where_it_began(told: Told, seed: int, per_second: float) -> None:
    told.running(ranks=4)
    rank, step = seed % 4, 812 + seed
    training = Training(told, 4, per_second=per_second)
    training.go(poisoned(plain(seed), rank, step), step + max(10, int(12 * per_second)), lag_s=0.4)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("numeric", "nan_loss", "none")
    assert (culprits(incident), incident.step) == ([rank], step)
    assert incident.detected_s - incident.onset_s < 6 / min(per_second, 1.0)
    assert training.remarks == []


def test_all_that_is_known_is_said(told: Told) -> None:
    told.running(ranks=4)
    curve = poisoned(without_norm(plain(1, noise=0.0)), 1, 812)
    training = Training(told, 4).go(curve, 812)
    saved(told, "/out/ckpt_800.pt", 800)
    saved(told, "/out/ckpt_812.pt", 812)
    training.go(curve, 88)
    incident = only(told)
    assert incident.summary == (
        "Rank 1 on node-a: the loss is NaN since step 812 (batch 812), and from step 813 on that of all 4 ranks; "
        "the last finite loss was 2.349."
    )
    evidence = incident.evidence
    assert (evidence["ranks"], evidence["reporting"]) == ("0-3", "0-3")
    assert evidence["first"] == {"1": {"loss": "nan", "batch": 812}}
    assert evidence["later"] == {"813": "0,2-3"}
    assert (evidence["batch"], evidence["learning_rate"]) == (812, 1e-3)
    assert evidence["last_loss"] == pytest.approx(2.349, abs=0.01)
    assert evidence["poisoned_checkpoints"] == {"/out/ckpt_812.pt": 812}
    assert "812" in incident.advice and "/out/ckpt_812.pt" in incident.advice
    saved(told, "/out/ckpt_900.pt", 900)
    saved(told, "/out/ckpt_1000.pt", 1000)
    assert list(only(told).evidence["poisoned_checkpoints"]) == [f"/out/ckpt_{n}.pt" for n in (812, 900, 1000)]
    said = [text for text in training.said if "incident" in text]
    assert len(said) == 1 and incident.recovered_s is None


def test_gradients_of_all_in_the_step_of_one_ranks_loss(told: Told) -> None:
    told.running(ranks=4)
    Training(told, 4).go(poisoned(plain(2), 3, 700), 900)
    incident = only(told)
    assert (culprits(incident), incident.step) == ([3], 700)
    assert (
        ": the loss is NaN since step 700 (batch 700), and the gradient norm of all 4 ranks with it" in incident.summary
    )
    assert incident.evidence["first"]["3"] == {"loss": "nan", "grad_norm": "nan", "batch": 700}
    assert incident.evidence["first"]["0"] == {"grad_norm": "nan", "batch": 700}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            Values(NAN, None),
            "The loss is NaN since step 500 on all 4 ranks in the same step; the last finite loss was 2.",
        ),
        (Values(INF, None), "The loss is infinite since step 500 on all 4 ranks in the same step"),
        (Values(None, NAN), "The gradient norm is NaN since step 500 on all 4 ranks in the same step"),
        (Values(2.0, INF), "The gradient norm is infinite since step 500 on all 4 ranks in the same step"),
        (Values(NAN, INF), "The loss is NaN since step 500 on all 4 ranks in the same step"),
    ],
)
def test_all_ranks_in_the_same_step_are_nobodys(told: Told, values: Values, words: str) -> None:
    told.running(ranks=4)
    Training(told, 4).go(from_step(plain(3, noise=0.0), 500, values), 700, lag_s=0.7)
    incident = only(told)
    assert (culprits(incident), incident.step) == ([], 500)
    assert incident.summary.startswith(words)


def test_gradients_alone_with_losses_that_stay_finite(told: Told) -> None:
    """Had one of these steps been taken, no loss would be finite after it."""
    told.running(ranks=2)
    training = Training(told, 2).go(from_step(plain(3), 500, Values(2.0, NAN)), 545)
    assert told.incidents == {}
    saved(told, "/out/ckpt_545.pt", 545)
    training.go(from_step(plain(3), 500, Values(2.0, NAN)), 100)
    incident = only(told)
    assert incident.step == 500 and incident.evidence["losses_are_finite"]
    assert "; losses stay finite, so these steps seem to be left out; the last" in incident.summary
    assert "poisoned_checkpoints" not in incident.evidence


def test_gradients_first_and_losses_after_them(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2, per_second=1).go(
        lambda rank, step: Values(2.0 if step <= 300 else NAN, NAN if step >= 300 else 1.0), 330
    )
    incident = only(told)
    assert incident.step == 300 and incident.detected_s - incident.onset_s < 4
    assert "The gradient norm is NaN since step 300" in incident.summary and "stay finite" not in incident.summary


def test_a_supervisor_that_is_started_anew_goes_on(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(poisoned(plain(20), 1, 600), 600)
    assert told.incidents == {} and told.state.detectors.numeric.nan_loss.episode is not None
    training.told = told.branch()
    training.go(poisoned(plain(20), 1, 600), 100)
    assert (culprits(only(training.told)), only(training.told).step) == ([1], 600)
    training.told.check()


def test_of_many_ranks_a_few_are_named(told: Told) -> None:
    """100 of 128, each second one's node a little later."""
    told.running(ranks=128)
    curve = instead(without_norm(plain(21)), lambda rank, step: Values(NAN) if rank < 100 and step >= 40 else None)
    Training(told, 128).go(curve, 240, lag_s=0.5)
    incident = only(told)
    assert culprits(incident) == list(range(64)) and incident.step == 40
    assert incident.evidence["ranks"] == "0-99" and len(incident.evidence["first"]) == 8
    assert incident.summary.startswith("Ranks 0-63 on node-a: the loss is NaN since step 40")


def test_a_rank_that_trains_alone_is_named(told: Told) -> None:
    told.running(ranks=1)
    Training(told, 1).go(poisoned(plain(4), 0, 333), 500)
    assert (culprits(only(told)), only(told).step) == ([0], 333)
    assert only(told).summary.startswith("Rank 0 on node-a: the loss is NaN since step 333 (batch 333); the last")


def test_a_loss_that_one_rank_alone_reports_blames_nobody(told: Told) -> None:
    told.running(ranks=4)
    Training(told, 4).go(poisoned(plain(5), 0, 400, norm_too=False), 600, silent={1, 2, 3})
    assert culprits(only(told)) == [] and only(told).step == 400
    assert "Rank 0 on node-a, the only one that reports it: the loss is NaN since step 400" in only(told).summary


def test_the_last_stage_of_a_pipeline_alone_has_losses(told: Told) -> None:
    told.running(ranks=4)
    curve = poisoned(plain(6), 3, 450)

    def staged(rank: int, step: int) -> Values:
        return Values(curve(rank, step).loss if rank == 3 else None, curve(rank, step).grad_norm)

    Training(told, 4).go(staged, 700)
    assert culprits(only(told)) == [] and only(told).step == 450


@pytest.mark.parametrize("loads_itself", [False, True])
def test_parameters_that_were_poisoned_before(told: Told, loads_itself: bool) -> None:
    told.running(ranks=2)
    told.crashed(error=ERROR)
    if loads_itself:
        told.restarted(step=40)
        told.tell(ev.CheckpointLoaded(attempt=told.attempt, global_rank=0, path=CKPT, step=40))
    else:
        resume(told, 40, CKPT)
    Training(told, 2, step=40).go(lambda rank, step: Values(NAN, NAN), 200)
    _, incident = told.incidents.values()
    assert (incident.step, culprits(incident)) == (41, [])
    assert f"on both ranks in the same step, the first after {CKPT} was resumed." in incident.summary
    assert incident.evidence["resumed_from"] == CKPT and CKPT in incident.advice


def test_the_first_step_of_all(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(lambda rank, step: Values(NAN, None), 200)
    assert only(told).step == 1 and "same step, the first of this attempt." in only(told).summary
    assert "resumed_from" not in only(told).evidence


def test_a_rank_that_says_nothing_is_not_waited_for_long(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(plain(7), 400)
    training.go(poisoned(plain(7), 2, 450), 400, silent={0})
    incident = only(told)
    assert culprits(incident) == [2] and incident.confidence == nan_loss.CONFIDENCE_UNHEARD
    assert incident.evidence["unheard"] == "0"
    assert 8 <= incident.detected_s - incident.onset_s < 12


def test_a_report_that_comes_late_does_not_make_the_others_guilty(told: Told) -> None:
    """Rank 1 began; its node is looked at last, and the others' reports are there first."""
    told.running(ranks=4)
    for seed in range(6):
        run = told.branch()
        Training(run, 4, per_second=7 + seed).go(poisoned(plain(seed), 1, 300 + seed), 420, lag_s=0.9)
        assert (culprits(only(run)), only(run).step) == ([1], 300 + seed)


@pytest.mark.parametrize("per_second", [0.1, 0.5, 2, 20])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_the_first_steps_of_all(step: int, per_second: float) -> None:
    """Who reports at all is hardly known then: odd ranks' nodes are looked at later."""
    for rank in (0, 1):
        run = Told()
        run.running(ranks=4)
        Training(run, 4, per_second=per_second).go(
            poisoned(plain(rank), rank, step), 12 + int(20 * per_second), lag_s=0.9
        )
        assert (culprits(only(run)), only(run).step) == ([rank], step)


def test_values_that_are_seen_now_and_then_blame_nobody(told: Told) -> None:
    """Rank 1's come at steps 12, 22, …; rank 0, who began it, is seen at 20, 30, …."""
    told.running(ranks=2)
    whole = poisoned(plain(8), 0, 521)
    curve: Curve = lambda rank, step: whole(rank, step) if step % 10 == 2 * rank else Values()  # noqa: E731
    Training(told, 2).go(curve, 700)
    incident = only(told)
    assert culprits(incident) == [] and incident.step == 522
    assert "values are seen only every 10 steps, so who began it is not known" in incident.summary


def test_values_every_ten_steps_alike_show_who_is_alone(told: Told) -> None:
    told.running(ranks=4)
    alone = instead(without_norm(plain(9)), lambda rank, step: Values(NAN) if rank == 2 and step >= 515 else None)
    Training(told, 4).go(every(alone, 10), 700)
    assert (culprits(only(told)), only(told).step) == ([2], 520)


def test_what_came_before_is_in_the_evidence(told: Told) -> None:
    """An explosion within 15 steps, too short to be told by itself."""
    told.running(ranks=2)
    rising = scaled(plain(10), lambda rank, step: 1.0, lambda rank, step: 2.0 ** max(0, step - 600))
    Training(told, 2).go(from_step(rising, 615, Values(NAN, NAN)), 700)
    incident = only(told)
    assert (incident.cause, incident.step) == ("nan_loss", 615)
    assert incident.evidence["spike_before"]["step"] <= 614
    assert incident.evidence["spike_before"]["grad_norm"] > 5


def test_an_explosion_that_was_told_is_named(told: Told) -> None:
    told.running(ranks=2)
    exploded = scaled(plain(11), leap(700, 3), leap(700, 90))
    Training(told, 2, per_second=5).go(from_step(exploded, 1000, Values(NAN, NAN)), 1100)
    before, incident = told.incidents.values()
    assert (before.cause, incident.cause) == ("grad_explosion", "nan_loss")
    assert incident.evidence["preceded_by"] == [before.id]


def test_what_becomes_finite_again_is_over(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(poisoned(plain(12), 0, 300), 600)
    assert only(told).recovered_s is None
    training.go(plain(12), 100)
    assert only(told).recovered_s is not None
    assert "incident 001 is over: loss and gradient norm are finite again, as of step 6" in training.said[-1]


def test_told_a_few_times_a_run(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2)
    for _ in range(6):
        training.go(poisoned(plain(13), 0, training.step + 100), 300).go(plain(13), 100)
    assert len(told.incidents) == nan_loss.MOST_REPORTED


def test_the_next_attempt_tells_what_happens_in_it(told: Told) -> None:
    told.running(ranks=2)
    Training(told, 2).go(poisoned(plain(14), 1, 300), 500)
    told.crashed(error=ERROR)
    resume(told, 40)
    training = Training(told, 2, step=40).go(plain(14), 200)
    assert [incident.cause for incident in told.incidents.values()] == ["nan_loss", "exception"]
    training.go(poisoned(plain(14), 1, 300), 200)
    again = list(told.incidents.values())[-1]
    assert (again.cause, again.attempt, again.step) == ("nan_loss", 1, 300)


@pytest.mark.parametrize("lasts", [1, 2, 5, 30])
def test_steps_that_the_script_overcomes_are_a_remark(told: Told, lasts: int) -> None:
    told.running(ranks=2)
    curve = instead(plain(15), lambda rank, at: Values(NAN, NAN) if 600 <= at < 600 + lasts else None)
    training = Training(told, 2, per_second=50).go(curve, 900)
    assert told.incidents == {}
    (remark,) = training.remarks
    assert remark.startswith(f"Ranks 0-1 on node-a: the loss was NaN {'at' if lasts == 1 else 'from'} step 600")


def test_remarks_are_few(told: Told) -> None:
    told.running(ranks=2)
    curve = instead(plain(16), lambda rank, at: Values(NAN, NAN) if at % 200 == 0 else None)
    training = Training(told, 2).go(curve, 3000)
    assert told.incidents == {} and len(training.remarks) == nan_loss.MOST_REMARKS


def test_a_script_that_ends_itself_for_it_is_told_whose_it_was(told: Told) -> None:
    told.running(ranks=4)
    training = Training(told, 4).go(poisoned(plain(17), 2, 600), 600)
    training.hear(told.exits(0, 1))
    training.hear(told.tick())
    training.hear(told.read(told.now_s + 0.1))
    assert training.remarks[-1] == "Rank 2 on node-a: the loss was NaN at step 600, just before the end"
    assert told.incidents == {} or "nan_loss" not in {incident.cause for incident in told.incidents.values()}
    told.stopped(told.now_s + 1.0)


@pytest.mark.parametrize("counts_skips", [True, False])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_grad_scaler_that_finds_no_scale(told: Told, ranks: int, counts_skips: bool) -> None:
    told.running(ranks=ranks)
    training = Training(told, ranks).go(plain(18), 800)
    skips = lambda rank, step: Values(2.3, NAN, is_skipped=True)  # noqa: E731
    training.go(skips, 400, counts=counts_skips)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("numeric", "nan_loss", "none")
    assert culprits(incident) == ([0] if ranks == 1 else [])
    assert incident.step is not None and 750 <= incident.step <= 810
    assert incident.summary.startswith("The GradScaler has left out ") and "at any scale" in incident.summary
    assert "scale" in incident.advice
    training.go(plain(18), 800)
    assert only(told).recovered_s is not None


def test_a_loss_that_is_nan_and_left_out_poisons_nothing(told: Told) -> None:
    told.running(ranks=2)
    training = Training(told, 2).go(plain(19), 500)
    training.go(lambda rank, step: Values(NAN, NAN, is_skipped=True), 50)
    saved(told, "/out/ckpt_540.pt", 540)
    training.go(lambda rank, step: Values(NAN, NAN, is_skipped=True), 100)
    incident = only(told)
    assert "; a GradScaler leaves these steps out; the last" in incident.summary
    assert incident.evidence["left_out"] and "poisoned_checkpoints" not in incident.evidence


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({"resumed_from": CKPT}, CKPT),
        ({"left_out": True}, "scale"),
        ({"losses_are_finite": True, "batch": 3}, "leaves these steps out"),
        ({"batch": 812}, "812"),
        ({}, "learning rate"),
        ({"poisoned_checkpoints": {"/out/a.pt": 3}}, "/out/a.pt"),
    ],
)
def test_advice_is_by_what_is_known(evidence: dict[str, object], words: str) -> None:
    assert words in advice_for("nan_loss", evidence)


def test_the_docs_name_the_constants() -> None:
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text()
    for name in ("SIGMAS", "LOSS_FACTOR", "NORM_FACTOR", "WARM_UP", "HEAL_STEPS", "ALONE", "SKIPS"):
        assert f"`{name}`" in page
