"""After a stop: the next attempt, or the end, and why."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import ERROR, Told, kinds
from tests.engine.recovery.preemptions import finish

CHECKPOINT = ev.Checkpoint(path="/out/a", step=8)


def test_a_crash_leads_to_the_next_attempt(told: Told) -> None:
    told.running()
    assert kinds(told.exits(1, -11, 20.0)) == ["StopAttempt"]
    assert kinds(told.tick()) == ["ReadExits"]
    assert kinds(told.read(20.5)) == ["WriteIncident"]
    assert kinds(told.stopped(21.0)) == ["WriteIncident", "ChooseCheckpoint"]
    actions = told.chosen(CHECKPOINT)
    assert kinds(actions) == ["WriteIncident", "StartAttempt"]
    assert actions[-1] == ac.StartAttempt(attempt=1, checkpoint=CHECKPOINT, is_guarded=True)
    incident = told.incidents["001"]
    assert (incident.action, incident.resumed_from, incident.recovered_s) == ("restart", CHECKPOINT, None)
    told.started(1, at_s=22.0)
    told.tell(ev.CheckpointOpened(attempt=1, path=CHECKPOINT.path), 23.0)
    told.step(10, 25.0)
    assert told.incidents["001"].recovered_s is None, "not past where it stopped"
    told.step(11, 26.0)
    assert told.incidents["001"].recovered_s == 26.0


def test_what_ranks_do_while_they_are_being_stopped_recovers_nothing(told: Told) -> None:
    told.running()
    told.exits(1, -11, 20.0)
    told.tick()
    told.read(20.5)
    told.step(12, 20.8, ranks=range(1))
    assert told.incidents["001"].recovered_s is None
    assert told.state.gaps.longest_s < 5


def test_resume_first_chooses_before_the_first_attempt(told: Told) -> None:
    assert kinds(told.opened(resume_first=True)) == ["ChooseCheckpoint"]
    assert kinds(told.chosen(CHECKPOINT)) == ["StartAttempt"]


def test_max_restarts(told: Told) -> None:
    told.running(max_restarts=2)
    for step in (20, 30):
        assert "ChooseCheckpoint" in kinds(told.crashed())
        told.restarted(step)
    summary = finish(told.crashed())
    assert (summary.outcome, summary.restarts, summary.exit_code) == ("gave_up", 2, 139)
    assert summary.reason == "all 2 restarts are used up"
    assert told.incidents["003"].action == "give_up"
    assert [a["outcome"] for a in summary.attempts] == ["segfault"] * 3


def test_no_restart_at_all(told: Told) -> None:
    told.running(max_restarts=0)
    assert finish(told.crashed(exitcode=3)).exit_code == 3


def test_restarts_that_get_no_further(told: Told) -> None:
    told.running(max_no_progress=2)
    for step in (9, 8):
        told.crashed()
        told.restarted(step)
    summary = finish(told.crashed())
    assert summary.reason == "2 restarts in a row got no further than step 10"
    assert told.incidents["003"].cause == "segfault", "not the same step each time: no poison"


def test_progress_in_between_starts_the_count_anew(told: Told) -> None:
    told.running(max_no_progress=2)
    for step in (10, 12, 12, 14, 14, 16):
        assert "ChooseCheckpoint" in kinds(told.crashed())
        told.restarted(step)


def test_poison(told: Told) -> None:
    told.running(max_no_progress=2)
    for _ in range(2):
        told.crashed()
        told.restarted(10)
    finish(told.crashed())
    incident = told.incidents["003"]
    assert (incident.kind, incident.cause, incident.action) == ("hang", "poison_step", "give_up")
    assert (incident.evidence["own_kind"], incident.evidence["own_cause"]) == ("crash", "segfault")
    assert "Step 10 has stopped the run 3 times in a row" in incident.summary


def test_no_limit_on_restarts_without_progress(told: Told) -> None:
    told.running(max_no_progress=0)
    for _ in range(6):
        assert "ChooseCheckpoint" in kinds(told.crashed())
        told.restarted(10)


def test_the_same_error_at_the_same_step_twice(told: Told) -> None:
    told.running()
    told.crashed(1, ERROR)
    told.restarted(10)
    assert finish(told.crashed(1, ERROR)).reason == "the same error at the same step twice"


def test_the_same_error_at_another_step_is_tried_again(told: Told) -> None:
    told.running()
    told.crashed(1, ERROR)
    told.restarted(11)
    assert "ChooseCheckpoint" in kinds(told.crashed(1, ERROR))


@pytest.mark.parametrize("kind", ["ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError"])
def test_errors_that_would_only_happen_again(told: Told, kind: str) -> None:
    told.running()
    summary = finish(told.crashed(1, ev.ErrorRecord(error=kind, message="x")))
    assert (summary.reason, summary.restarts) == ("it would only happen again", 0)


def test_only_watching_ends_with_the_attempt(told: Told) -> None:
    told.running(act=False)
    summary = finish(told.crashed())
    assert (summary.outcome, summary.exit_code, told.incidents["001"].action) == ("failed", 139, "none")


def test_no_checkpoint_can_be_chosen(told: Told) -> None:
    told.running()
    told.crashed()
    for _ in range(2):
        assert kinds(told.chosen(error="disk")) == ["ChooseCheckpoint"]
    assert finish(told.chosen(error="disk")).outcome == "gave_up"


def test_failures_to_choose_are_counted_for_each_restart(told: Told) -> None:
    told.running()
    told.crashed()
    told.chosen(error="disk")
    told.chosen(error="disk")
    told.restarted(20)
    told.crashed()
    assert kinds(told.chosen(error="disk")) == ["ChooseCheckpoint"]


def test_torn_checkpoints_are_named(told: Told) -> None:
    told.running()
    told.crashed()
    skipped = [ev.Skipped(path="/out/b", reason="cut short")]
    actions = told.chosen(CHECKPOINT, skipped=skipped)
    assert any(isinstance(a, ac.Say) and "/out/b: cut short" in a.text for a in actions)
    assert told.incidents["001"].evidence["skipped_checkpoints"] == [{"path": "/out/b", "reason": "cut short"}]


def test_an_end_without_any_trace_does_not_wedge(told: Told) -> None:
    told.running()
    told.tell(ev.AttemptStopped(attempt=0, exitcodes={}, stopped_by_us=[]), 20.0)
    assert "ChooseCheckpoint" in kinds(told.read(20.1))
    assert (told.incidents["001"].cause, told.incidents["001"].culprits) == ("unknown", [])


def test_training_that_ended_well(told: Told) -> None:
    told.running()
    told.exits(0, 0, 20.0)
    told.exits(1, 0, 20.1)
    assert finish(told.stopped(20.2)).outcome == "finished"


def test_more_than_999_incidents(told: Told) -> None:
    """Their numbers are no longer in the order of their names."""
    told.begin_with(next_incident=999)
    told.running()
    for step in (20, 30):
        told.crashed()
        told.restarted(step, CHECKPOINT)
    assert told.incidents["999"].resumed_from == told.incidents["1000"].resumed_from == CHECKPOINT


def test_every_attempt_is_recorded_once(told: Told) -> None:
    told.running()
    told.crashed()
    told.restarted(20)
    told.exits(0, -9, 50.0)
    summary = finish(told.tell(ev.StopRequested(signum=15), 50.1) + told.stopped(50.5))
    assert [a["attempt"] for a in summary.attempts] == [0, 1]
    assert told.phase is Phase.ENDED


@pytest.mark.parametrize(("step", "code", "is_over"), [(60, 3, True), (61, 3, False), (60, 4, False)])
def test_a_script_that_ends_itself_so_at_the_same_step_is_believed(
    told: Told, step: int, code: int, is_over: bool
) -> None:
    """A quality gate, say: whichever rank was seen to end first."""
    told.running()
    told.step(60, told.now_s + 1.0)
    assert kinds(told.crashed(exitcode=3, rank=0))[-1] == "ChooseCheckpoint"
    told.restarted(step)
    actions = told.crashed(exitcode=code, rank=1)
    assert (kinds(actions)[-1] == "FinishRun") == is_over
    if is_over:
        assert finish(actions).reason == "it ended itself so at the same step twice"


def test_a_program_that_ends_so_at_once_is_tried_twice_and_no_more(told: Told) -> None:
    told.opened()
    told.started(at_s=1.0)
    assert kinds(told.crashed(exitcode=3))[-1] == "ChooseCheckpoint"
    told.chosen()
    told.started(1, at_s=told.now_s + 1.0)
    summary = finish(told.crashed(exitcode=3))
    assert (summary.outcome, summary.restarts, summary.exit_code) == ("gave_up", 1, 3)
    assert summary.reason == "it ended so at once, twice, without a step"


@pytest.mark.parametrize("after_s", [60.0, 600.0])
def test_one_that_takes_its_time_is_tried_again(told: Told, after_s: float) -> None:
    told.opened()
    told.started(at_s=1.0)
    told.now_s += after_s
    told.crashed(exitcode=3)
    told.chosen()
    told.started(1, at_s=told.now_s + 1.0)
    assert kinds(told.crashed(exitcode=3))[-1] == "ChooseCheckpoint"
