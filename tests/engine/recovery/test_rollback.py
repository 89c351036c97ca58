"""Back to before a loss went to NaN, or up for good: when, to what, and when not."""

from __future__ import annotations

import pytest

from guardrun.hooks.wire.board import Milestone
from guardrun.supervisor.engine.detectors.numeric.spike_evidence import TOGETHER
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.detectors.numeric.curves import (
    NAN,
    Curve,
    Values,
    every,
    instead,
    leap,
    pieces,
    plain,
    poisoned,
    scaled,
    without_norm,
)
from tests.engine.detectors.numeric.training import only, resume
from tests.engine.recovery.rollbacks import BAD, BAD_AT, GOOD, ROLLS_BACK, Heard, begin_next


def goes_wrong(told: Told, at: int = BAD_AT, **settings: object) -> Heard:
    """Two checkpoints, the second of them of NaN."""
    told.running(ranks=2, **{**ROLLS_BACK, **settings})
    curve = poisoned(plain(1), 1, at)
    return Heard(told).go(curve, 800).saves(GOOD).go(curve, 20).saves(BAD).go(curve, 80)


def why(told: Told) -> str:
    return str(only(told).evidence.get("not_rolled_back", ""))


def test_the_attempt_is_ended_and_what_it_saved_since_is_not_chosen(told: Told) -> None:
    heard = goes_wrong(told)
    assert kinds(heard.actions)[-1] == "StopAttempt" and told.phase is Phase.STOPPING
    stopped_s = told.now_s
    incident = only(told)
    assert (incident.cause, incident.step, incident.evidence["rolled_back"]) == ("nan_loss", BAD_AT, True)
    assert stopped_s - incident.onset_s < 5.0 and incident.acted_s is not None
    [choice] = [action for action in begin_next(told) if isinstance(action, ac.ChooseCheckpoint)]
    [spoiled] = choice.spoiled
    assert (spoiled.since_s, spoiled.attempt, spoiled.from_step) == (incident.onset_s, 0, BAD_AT - 1)
    assert spoiled.until_s > stopped_s
    Heard(told, step=800).go(plain(2), 200)
    incident = only(told)
    assert (incident.action, incident.resumed_from) == ("restart", GOOD)
    assert incident.recovered_s is not None and told.phase is Phase.RUNNING


def test_nor_later_when_something_else_stops_the_run(told: Told) -> None:
    """Its number is the higher one until training is as far again."""
    goes_wrong(told)
    [first] = [action for action in begin_next(told) if isinstance(action, ac.ChooseCheckpoint)]
    Heard(told, step=800).go(plain(2), 10)
    again = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert [choice.spoiled for choice in again] == [first.spoiled]


@pytest.mark.parametrize("per_second", [20.0, 1.0], ids=["several values a report", "one"])
def test_what_was_saved_since_the_last_value_that_was_seen_may_have_it_already(told: Told, per_second: float) -> None:
    """Values are seen every ten steps: at 800 all was well, and not any more at 810."""
    told.running(ranks=2, **ROLLS_BACK)
    curve, heard = every(poisoned(plain(1), 1, 803), 10), Heard(told)
    heard.training.per_second = per_second
    heard.go(curve, 795).saves(BEFORE).go(curve, 500)
    assert only(told).step == 810 and heard.is_stopped, why(told)
    [choice] = [action for action in begin_next(told) if isinstance(action, ac.ChooseCheckpoint)]
    assert choice.spoiled[0].from_step == 800


def test_nor_is_a_checkpoint_gone_back_to_that_has_it_where_values_are_seen_now_and_then(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    Heard(told).go(every(plain(1), 10), 820).saves(BAD)
    told.crashed()
    resume(told, BAD.step, BAD.path)
    heard = Heard(told, step=820).go(every(instead(plain(1), lambda *_: Values(NAN, NAN)), 10), 500)
    *_, incident = told.incidents.values()
    assert not heard.is_stopped
    assert incident.evidence["not_rolled_back"] == "/out/ckpt_820.pt, from which it resumed, has it already"


def test_by_default_nothing_is_ended(told: Told) -> None:
    heard = goes_wrong(told, rolls_back=False)
    assert not heard.is_stopped and not why(told) and only(told).action == "none"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"act": False}, "[policy] act = false"),
        ({"is_torchrun_agent": True}, "torchrun's own agent decides what follows"),
        ({"resumes": False}, "its own choice"),
        ({"max_restarts": 0}, "max_restarts"),
        ({"max_rollbacks": 0}, "max_rollbacks"),
    ],
)
def test_it_is_said_why_not(told: Told, settings: dict[str, object], words: str) -> None:
    heard = goes_wrong(told, **settings)
    assert not heard.is_stopped and words in why(told)
    said = [text for text in heard.training.said if "no rollback" in text]
    assert len(said) == 1 and words in said[0]


def test_a_script_that_asks_guardrun_what_to_resume_from_needs_no_setting(told: Told) -> None:
    told.running(ranks=2, **{**ROLLS_BACK, "resumes": False})
    curve, heard = poisoned(plain(1), 1, BAD_AT), Heard(told)
    heard.training.milestones = Milestone.RESUMED
    assert heard.go(curve, 800).saves(GOOD).go(curve, 100).is_stopped


def test_without_a_checkpoint_from_before_it_goes_on(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    curve = poisoned(plain(1), 1, BAD_AT)
    heard = Heard(told).go(curve, 820).saves(BAD).go(curve, 80)
    assert not heard.is_stopped and why(told) == "no whole checkpoint from before is there"
    assert told.state.rollbacks == []


def test_what_would_be_saved_at_the_end_is_of_no_use(told: Told) -> None:
    """A handler of SIGTERM would write it over the one that is gone back to."""
    heard = goes_wrong(told)
    [stop] = [action for action in heard.actions if isinstance(action, ac.StopAttempt)]
    assert stop.grace_s == 0.0


def test_ranks_that_are_killed_at_once_have_not_fallen_by_themselves(told: Told) -> None:
    goes_wrong(told)
    stopped_s = told.now_s
    for rank in (0, 1):
        told.exits(rank, -9, stopped_s + 0.02)
    assert "ChooseCheckpoint" in kinds(told.stopped(stopped_s + 0.1))
    assert [(one.cause, one.action) for one in told.incidents.values()] == [("nan_loss", "restart")]


def test_steps_that_were_trained_for_nothing_are_none_to_get_further_than(told: Told) -> None:
    """Attempts that fall after it, each further than the last one, but before where the spoilt one had come."""
    goes_wrong(told)
    begin_next(told)
    Heard(told, step=800).go(plain(2), 20)
    for step in (840, 850, 860):
        assert "ChooseCheckpoint" in kinds(told.crashed()), told.state.give_up_reason
        resume(told, step - 20, f"/out/ckpt_{step - 20}.pt")
        Heard(told, step=step - 20).go(plain(2), 20)
    assert told.state.no_progress == 0 and told.state.best_step > 860


# What there is to go back to is looked for first -------------------------------------------------------------------


def looks(told: Told, **settings: object) -> tuple[Heard, ac.ChooseCheckpoint]:
    """An attempt that has gone wrong, and the question that nobody has answered yet."""
    told.running(ranks=2, **{**ROLLS_BACK, **settings})
    curve, heard = poisoned(plain(1), 1, BAD_AT), Heard(told)
    heard.answers = False
    heard.go(curve, 800).saves(GOOD).go(curve, 100)
    [look] = [action for action in heard.actions if isinstance(action, ac.ChooseCheckpoint)]
    assert look.is_look and not heard.is_stopped and told.phase is Phase.RUNNING
    told.check()
    return heard, look


def is_ended_by(actions: list[ac.Action]) -> bool:
    return "StopAttempt" in kinds(actions)


def test_the_attempt_is_ended_once_there_is_one(told: Told) -> None:
    heard, look = looks(told)
    [spoiled] = look.spoiled
    assert (spoiled.attempt, spoiled.from_step, spoiled.until_s) == (0, BAD_AT - 1, pytest.approx(told.now_s, abs=5.0))
    assert not is_ended_by(told.tell(ev.CheckpointChosen(choice=look.choice - 1, checkpoint=GOOD)))
    assert is_ended_by(heard.answer(look)) and told.phase is Phase.STOPPING


def test_folders_that_do_not_answer_hold_nothing_up(told: Told) -> None:
    heard, look = looks(told)
    heard.go(poisoned(plain(1), 1, BAD_AT), 3000)
    told.tick()
    assert why(told) == "the folders of checkpoints do not answer"
    assert not is_ended_by(heard.answer(look)), "too late"
    assert only(told).acted_s is None and told.state.rollbacks == []


def test_what_could_not_be_looked_for_is_said(told: Told) -> None:
    _, look = looks(told)
    assert not is_ended_by(told.tell(ev.CheckpointChosen(choice=look.choice, error="OSError: stale")))
    assert why(told) == "no whole checkpoint from before is there (OSError: stale)"


def test_a_rank_that_comes_to_its_end_meanwhile_is_let_end(told: Told) -> None:
    heard, look = looks(told)
    told.tell(ev.RankEnded(attempt=0, global_rank=1))
    assert not is_ended_by(heard.answer(look)) and why(told) == "a rank has ended already"


def test_a_run_that_is_held_meanwhile_goes_on(told: Told) -> None:
    heard, look = looks(told)
    told.tell(ev.HoldSet(is_held=True, who="me"))
    assert not is_ended_by(heard.answer(look)) and "guardctl hold" in why(told)


def test_what_is_over_meanwhile_ends_nothing(told: Told) -> None:
    heard, look = looks(told)
    heard.go(plain(1), 200)
    assert only(told).recovered_s is not None
    assert not is_ended_by(heard.answer(look)) and not why(told)


def test_a_rank_that_falls_meanwhile_has_its_own_choice(told: Told) -> None:
    heard, look = looks(told)
    [choice] = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert not choice.is_look and choice.choice > look.choice
    assert kinds(heard.answer(look)) == [] and told.phase is Phase.CHOOSING
    [spoiled] = choice.spoiled
    assert (spoiled.attempt, spoiled.from_step) == (0, BAD_AT - 1), "it is NaN all the same"
    assert spoiled.until_s == pytest.approx(told.now_s)


def test_what_went_on_as_nan_is_not_chosen_when_something_else_ends_it(told: Told) -> None:
    """Also where no rollback was possible: it would be NaN from its first step on, and could not be gone back from."""
    heard = goes_wrong(told, max_rollbacks=0)
    assert not heard.is_stopped
    [choice] = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert [(one.attempt, one.from_step) for one in choice.spoiled] == [(0, BAD_AT - 1)]


def test_what_has_come_back_is_as_good_as_any(told: Told) -> None:
    """A script that leaves out a long row of bad batches by itself."""
    heard = goes_wrong(told, max_rollbacks=0).go(plain(1), 200)
    assert only(told).recovered_s is not None and not heard.is_stopped
    [choice] = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert choice.spoiled == []


def test_a_leap_that_is_trained_on_is_no_reason_to_go_back_later(told: Told) -> None:
    heard = leaps(told, scaled(plain(1), leap(BAD_AT, 4)), max_rollbacks=0)
    assert not heard.is_stopped and "max_rollbacks" in why(told)
    [choice] = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert choice.spoiled == []


def test_who_only_watches_has_every_checkpoint(told: Told) -> None:
    goes_wrong(told, rolls_back=False)
    [choice] = [action for action in told.crashed() if isinstance(action, ac.ChooseCheckpoint)]
    assert choice.spoiled == []


def test_a_supervisor_that_is_started_anew_asks_again(told: Told) -> None:
    _, look = looks(told)
    again = told.branch()
    [repeated] = [action for action in again.tell(ev.SupervisorRestarted()) if isinstance(action, ac.ChooseCheckpoint)]
    assert (repeated.choice, repeated.is_look) == (look.choice, True)
    assert is_ended_by(again.tell(ev.CheckpointChosen(choice=look.choice, checkpoint=GOOD)))
    again.check()


def test_time_that_nobody_had_does_not_count(told: Told) -> None:
    heard, look = looks(told)
    told.tell(ev.TimeSkipped(gap_s=1000.0), told.now_s + 1000.0)
    assert not why(told)
    assert is_ended_by(heard.answer(look))


def test_while_a_person_holds_the_run_it_goes_on(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    told.tell(ev.HoldSet(is_held=True, who="me"))
    curve = poisoned(plain(1), 1, BAD_AT)
    heard = Heard(told).go(curve, 800).saves(GOOD).go(curve, 100)
    assert not heard.is_stopped and "guardctl hold" in why(told)
    heard.training.hear(told.tell(ev.HoldSet(is_held=False, who="me")))
    assert heard.is_stopped and not why(told), "until it is no longer held"


def test_a_run_that_is_no_longer_held_is_left_alone_where_all_is_well(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    told.tell(ev.HoldSet(is_held=True, who="me"))
    curve, heard = poisoned(plain(1), 1, BAD_AT), Heard(told)
    heard.go(curve, 800).saves(GOOD).go(curve, 100).go(plain(1), 100)
    heard.training.hear(told.tell(ev.HoldSet(is_held=False, who="me")))
    assert not heard.is_stopped and told.state.rollbacks == []


def test_a_job_that_is_about_to_end_does_so(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    curve, heard = poisoned(plain(1), 1, BAD_AT), Heard(told)
    heard.go(curve, 800).saves(GOOD)
    told.tell(ev.PreemptionNoticed(signum=10))
    assert not heard.go(curve, 100).is_stopped
    [incident] = [one for one in told.incidents.values() if one.cause == "nan_loss"]
    assert "about to end" in incident.evidence["not_rolled_back"]


def test_the_same_step_twice_is_the_data_or_the_code(told: Told) -> None:
    goes_wrong(told)
    begin_next(told)
    heard = Heard(told, step=800).go(poisoned(plain(1), 1, BAD_AT), 100)
    _, second = told.incidents.values()
    assert not heard.is_stopped and told.phase is Phase.RUNNING
    assert second.evidence["not_rolled_back"].startswith(f"step {BAD_AT} went wrong before")


def test_another_step_is_rolled_back_too_up_to_a_limit(told: Told) -> None:
    goes_wrong(told, max_rollbacks=2)
    for at, is_ended in ((900, True), (990, False)):
        begin_next(told)
        heard = Heard(told, step=800).go(plain(3), 40)
        heard.saves(ev.Checkpoint(path="/out/ckpt_840.pt", step=840))
        heard.go(poisoned(plain(3), 1, at), at - 840 + 60)
        assert heard.is_stopped is is_ended, at
    *_, last = told.incidents.values()
    assert "2 already" in last.evidence["not_rolled_back"]


def test_a_checkpoint_that_has_it_already_is_not_gone_back_to(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    Heard(told).go(plain(1), 820).saves(BAD)
    told.crashed()
    resume(told, BAD.step, BAD.path)
    heard = Heard(told, step=820).go(instead(plain(1), lambda *_: Values(NAN, NAN)), 100)
    *_, incident = told.incidents.values()
    assert not heard.is_stopped
    assert incident.evidence["not_rolled_back"] == "/out/ckpt_820.pt, from which it resumed, has it already"


@pytest.mark.parametrize(
    "curve",
    [
        pytest.param(instead(plain(1), lambda _, step: Values(NAN, NAN) if 812 <= step < 830 else None), id="it ends"),
        pytest.param(instead(plain(1), lambda _, step: Values(NAN, NAN) if step % 2 else None), id="every other step"),
        pytest.param(instead(plain(1), lambda _, step: Values(None, NAN) if step >= 812 else None), id="norms alone"),
        pytest.param(
            instead(plain(1), lambda rank, step: Values(NAN, None) if rank == 1 and step >= 812 else None),
            id="of one rank alone",
        ),
        pytest.param(instead(plain(1), lambda _, step: Values(NAN, NAN, step % 9 < 8)), id="a scaler at its end"),
        pytest.param(every(plain(1), 5), id="seen now and then"),
    ],
)
def test_what_may_be_overcome_is_left_alone(told: Told, curve: Curve) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    heard = Heard(told).go(curve, 800).saves(GOOD).go(curve, 400)
    assert not heard.is_stopped and told.phase is Phase.RUNNING


def test_a_rank_that_has_fallen_meanwhile_comes_first(told: Told) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    curve = poisoned(plain(1), 1, BAD_AT)
    heard = Heard(told).go(curve, 800).saves(GOOD).go(curve, 14)
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=ERROR))
    told.exits(1, 1)
    heard.go(curve, 60)
    assert not any("rolled_back" in incident.evidence for incident in told.incidents.values())


def test_ranks_that_end_well_when_they_are_told_to_have_not_come_to_the_end(told: Told) -> None:
    goes_wrong(told)
    for rank in (0, 1):
        told.tell(ev.RankEnded(attempt=0, global_rank=rank))
        told.exits(rank, 0, told.now_s + 0.5)
    assert "ChooseCheckpoint" in kinds(told.stopped(told.now_s + 1.0)) and told.state.outcome == "running"


# A loss that leaps up --------------------------------------------------------------------------------------------

BEFORE = ev.Checkpoint(path="/out/ckpt_500.pt", step=500)
LATER = ev.Checkpoint(path="/out/ckpt_1700.pt", step=1700)


def leaps(told: Told, curve: Curve, steps: int = 1100, ranks: int = 3, **settings: object) -> Heard:
    """Three checkpoints: well before step 812, hardly before it, after it."""
    told.running(ranks=ranks, **{**ROLLS_BACK, **settings})
    heard = Heard(told, ranks).go(curve, 500).saves(BEFORE).go(curve, 300).saves(GOOD).go(curve, 20).saves(BAD)
    return heard.go(curve, steps)


def test_a_loss_that_has_leapt_up_for_good_is_left_behind(told: Told) -> None:
    """What was saved hardly before its first odd step may have been spoilt already."""
    heard = leaps(told, scaled(plain(1), leap(BAD_AT, 4), leap(BAD_AT, 9)))
    incident = only(told)
    assert heard.is_stopped and (incident.step, incident.evidence["rolled_back"]) == (BAD_AT, True)
    assert incident.evidence["batches_not_left_out"] == "which batches did it isn't known"
    [choice] = [action for action in begin_next(told, BEFORE) if isinstance(action, ac.ChooseCheckpoint)]
    [spoiled] = choice.spoiled
    assert BEFORE.step < spoiled.from_step <= GOOD.step
    Heard(told, 3, step=500).go(plain(2), 900)
    incident = only(told)
    assert (incident.action, incident.resumed_from) == ("restart", BEFORE)
    assert incident.recovered_s is not None and told.phase is Phase.RUNNING


def test_a_leap_with_nothing_from_before_it_is_trained_on(told: Told) -> None:
    """A script that keeps its newest alone: to begin anew would lose all."""
    told.running(ranks=3, **ROLLS_BACK)
    curve = scaled(plain(1), leap(BAD_AT, 4))
    heard = Heard(told, 3).go(curve, 800).saves(GOOD).go(curve, 1100)
    assert not heard.is_stopped and told.phase is Phase.RUNNING
    assert why(told) == "no whole checkpoint from before is there"


@pytest.mark.parametrize("per_second", [200.0, 10.0], ids=["several values a report", "one"])
def test_a_leap_that_is_seen_every_sixty_steps(told: Told, per_second: float) -> None:
    told.running(ranks=2, **ROLLS_BACK)
    curve, heard = every(scaled(without_norm(plain(1)), leap(12_003, 5)), 60), Heard(told)
    heard.training.per_second = per_second
    heard.go(curve, 11_990).saves(BEFORE).go(curve, 14_000)
    assert only(told).step == 12_060 and heard.is_stopped, why(told)
    [choice] = [action for action in begin_next(told, BEFORE) if isinstance(action, ac.ChooseCheckpoint)]
    assert choice.spoiled[0].from_step == 12_001 - TOGETHER


def test_a_leap_that_becomes_nan_while_it_is_looked_for_a_checkpoint(told: Told) -> None:
    """Where there is none for the leap, there may be one for what is NaN: it is looked for that, too."""
    told.running(ranks=2, **ROLLS_BACK)
    leapt = scaled(plain(1), leap(BAD_AT, 4))
    nan_at = BAD_AT + 1000
    curve, heard = instead(leapt, lambda _, step: Values(NAN, NAN) if step >= nan_at else None), Heard(told)
    heard.answers = False
    heard.go(curve, 800).saves(GOOD).go(curve, 900).saves(LATER).go(curve, 300)
    first, *more = [action for action in heard.actions if isinstance(action, ac.ChooseCheckpoint)]
    assert first.spoiled[0].from_step == BAD_AT - TOGETHER and not more
    *_, second = told.tell(ev.CheckpointChosen(choice=first.choice))
    assert isinstance(second, ac.ChooseCheckpoint) and second.is_look
    assert second.spoiled[0].from_step == nan_at - 1 and is_ended_by(heard.answer(second))
    [choice] = [action for action in begin_next(told, LATER) if isinstance(action, ac.ChooseCheckpoint)]
    assert [one.from_step for one in choice.spoiled] == [nan_at - 1]


def test_by_default_it_is_told_and_nothing_is_ended(told: Told) -> None:
    heard = leaps(told, scaled(plain(1), leap(BAD_AT, 4)), rolls_back=False)
    assert not heard.is_stopped and not why(told) and only(told).cause == "loss_spike"


@pytest.mark.parametrize("later", [0, 60])
def test_a_leap_near_the_one_before_is_the_data_or_the_code(told: Told, later: int) -> None:
    """A learning rate that is too high leads to one sooner or later."""
    leaps(told, scaled(plain(1), leap(BAD_AT, 4)))
    begin_next(told, BEFORE)
    heard = Heard(told, 3, step=500).go(scaled(plain(2), leap(BAD_AT + later, 4)), 1400)
    _, second = told.incidents.values()
    assert not heard.is_stopped and told.phase is Phase.RUNNING
    assert "went wrong before a rollback, too" in second.evidence["not_rolled_back"]


@pytest.mark.parametrize(
    ("curve", "causes"),
    [
        pytest.param(scaled(plain(1), leap(812, 4, heals=150)), [], id="harder data, soon learned"),
        pytest.param(scaled(plain(1), leap(812, 3, heals=1200)), ["loss_spike"], id="harder data, learned by and by"),
        pytest.param(scaled(plain(1), pieces((812, 1.9))), [], id="harder data for good"),
        pytest.param(
            scaled(plain(1), pieces((812, 4), (1400, 2.4))), ["loss_spike"], id="half the way back, and stays there"
        ),
        pytest.param(scaled(plain(1), leap(812, 4, lasts=600)), ["loss_spike"], id="it comes back"),
        pytest.param(
            scaled(plain(1), lambda *_: 1.0, leap(812, 300)), ["grad_explosion"], id="a norm alone, whatever it means"
        ),
        pytest.param(
            scaled(plain(1), lambda rank, step: 5 if rank == 1 and step > 812 else 1), [], id="one rank's data"
        ),
    ],
)
def test_what_may_be_learned_is_left_alone(told: Told, curve: Curve, causes: list[str]) -> None:
    heard = leaps(told, curve, 1500)
    assert not heard.is_stopped and told.phase is Phase.RUNNING
    assert [incident.cause for incident in told.incidents.values()] == causes
    assert not any({"rolled_back", "not_rolled_back"} & set(one.evidence) for one in told.incidents.values())
