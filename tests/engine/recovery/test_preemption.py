"""A job that its scheduler is about to end: asked to save, stopped, ended unfinished, and no failure."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import Told, kinds
from tests.engine.recovery.preemptions import INT, SAVED, TERM, USR1, finish, left, noticed, requeueable, secured


@pytest.mark.parametrize(("got_s", "since_s"), [(0.0, 20.0), (19.99, 19.99), (20.5, 20.0)])
def test_a_save_counts_from_the_moment_of_the_signal(told: Told, got_s: float, since_s: float) -> None:
    """A rank that was given it may have saved before the engine hears of it. 0: as in older journals."""
    told.running()
    actions = told.tell(ev.PreemptionNoticed(signum=USR1, is_forwarded=True, at_s=got_s), 20.0)
    assert [action.since_s for action in actions if isinstance(action, ac.AskCheckpoint)] == [since_s]


def test_saved_stopped_and_ended_unfinished(told: Told) -> None:
    told.running()
    assert kinds(noticed(told)) == ["WriteIncident", "AskCheckpoint"]
    told.tell(ev.CheckpointAsked(request=1, at_call=40), 20.1)
    assert told.incidents["001"].summary.endswith("the ranks are asked to save, and have 600 s.")
    assert told.step(12, 22.0) == [], "training goes on, and recovers nothing"
    assert kinds(secured(told, 23.0)) == ["WriteIncident", "StopAttempt"]
    told.step(13, 23.5)
    summary = finish(told.stopped(24.0))
    assert (summary.outcome, summary.exit_code, summary.reason) == ("preempted", 138, "SIGUSR1")
    assert (summary.restarts, summary.attempts[0]["outcome"]) == (0, "preempted")
    incident = told.incidents["001"]
    assert (incident.kind, incident.cause, incident.culprits, incident.action) == ("preemption", "signal", [], "none")
    assert incident.summary == (
        "SIGUSR1 said that the job was about to end; checkpoint /out/c (step 12) was whole after 3.0 s."
    )
    assert incident.step == 13, "where it stopped"
    assert incident.evidence["in_time"] and incident.evidence["asked"] and incident.evidence["saved_in_s"] == 3.0


def test_the_same_command_goes_on_and_recovers(told: Told) -> None:
    told.running()
    noticed(told)
    secured(told, 23.0)
    told.stopped(24.0)
    told.tell(ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=0.0), 30.0)
    told.chosen(SAVED)
    told.started(1, at_s=31.0)
    told.step(13, 33.0)
    incident = told.incidents["001"]
    assert (incident.resumed_from, incident.recovered_s) == (SAVED, 33.0)
    assert told.state.restarts == told.state.no_progress == 0
    assert told.engine.state.notice.cause == ""


def test_a_script_that_never_saves_is_stopped_in_time(told: Told) -> None:
    told.running(grace_s=60.0, floor_s=1000.0)
    noticed(told)
    assert kinds(told.tick())[-1] == "StopAttempt"
    assert told.now_s == pytest.approx(80.0, abs=0.01)
    assert kinds(told.stopped(82.0)) == ["SeekCheckpoint"]
    assert finish(secured(told, 82.1, None)).outcome == "preempted"
    assert told.incidents["001"].evidence["in_time"] is False
    assert "no checkpoint was whole in time" in told.incidents["001"].summary
    assert "should_checkpoint()" in told.incidents["001"].advice


@pytest.mark.parametrize(("catchers", "advised"), [([], "[checkpoint] dir"), ([0, 1], "forward = true")])
def test_advice_goes_by_what_was_missing(told: Told, catchers: list[int], advised: str) -> None:
    told.running(grace_s=10.0, floor_s=1000.0)
    noticed(told, catchers=catchers)
    told.tell(ev.CheckpointAsked(request=1, at_call=9), 20.2)
    told.tell(ev.CheckpointAnswered(request=1), 21.0)
    told.tick()
    told.stopped(35.0)
    secured(told, 35.1, None)
    assert advised in told.incidents["001"].advice


def test_what_the_ranks_save_as_they_are_stopped_counts(told: Told) -> None:
    told.running(grace_s=10.0, floor_s=1000.0)
    noticed(told)
    told.tick()
    told.stopped(35.0)
    finish(secured(told, 35.1))
    assert told.incidents["001"].evidence["in_time"]


def test_the_scheduler_s_end_bounds_the_wait(told: Told) -> None:
    told.running(stop_grace_s=10.0)
    told.tell(ev.SchedulerStatusChanged(end_s=200.0), 5.0)
    noticed(told)
    assert told.state.notice.deadline_s == 185.0
    told.tell(ev.SchedulerStatusChanged(end_s=100.0, why="preempted"), 21.0)
    assert told.state.notice.deadline_s == 85.0
    assert "(preempted)" in told.incidents["001"].summary


def test_sigterm_leaves_what_is_left_before_sigkill(told: Told) -> None:
    told.running(term_grace_s=30.0, stop_grace_s=10.0)
    assert kinds(noticed(told, TERM)) == ["AskCheckpoint"], "nothing is told before the scheduler has said why"
    assert told.state.notice.deadline_s == 35.0
    assert kinds(told.tell(ev.SchedulerStatusChanged(end_s=140.0, why="preempted"), 21.0)) == ["WriteIncident"]
    assert told.state.notice.deadline_s == 125.0
    secured(told, 25.0)
    assert finish(told.stopped(26.0)).exit_code == 143


def gone(told: Told) -> list[ac.Action]:
    """SIGTERM to every process of the job: its ranks are dead before the scheduler has said why."""
    told.running(term_grace_s=30.0, stop_grace_s=10.0)
    assert kinds(noticed(told, TERM, is_why_asked=True)) == ["AskCheckpoint"]
    for rank in (0, 1):
        told.exits(rank, -TERM, 20.1)
    return told.stopped(20.2)


def test_ranks_that_are_gone_before_the_scheduler_says_why_are_called_nothing(told: Told) -> None:
    assert gone(told) == [] and not told.incidents
    summary = finish(told.tell(ev.SchedulerStatusChanged(why="cancelled"), 22.0))
    assert (summary.outcome, summary.exit_code, summary.attempts[0]["outcome"]) == ("interrupted", 143, "interrupted")
    assert not told.incidents


def test_the_scheduler_s_word_comes_after_the_ranks_ends(told: Told) -> None:
    gone(told)
    assert told.tell(ev.SchedulerStatusChanged(end_s=90.0), 21.0) == [], "it says when, and not why"
    assert kinds(told.tell(ev.SchedulerStatusChanged(end_s=90.0, why="preempted"), 22.0)) == ["SeekCheckpoint"]
    assert finish(secured(told, 22.1)).outcome == "preempted"
    assert "(preempted)" in told.incidents["001"].summary


def test_a_silent_scheduler_is_waited_for_while_there_is_time(told: Told) -> None:
    gone(told)
    assert kinds(told.tick()) == ["SeekCheckpoint"]
    assert told.now_s == pytest.approx(35.0, abs=0.01), "15 s before SIGKILL"
    assert finish(secured(told, 35.1)).outcome == "preempted"


@pytest.mark.parametrize(("signum", "outcome"), [(TERM, "preempted"), (INT, "interrupted")])
def test_a_second_signal_waits_for_no_word(told: Told, signum: int, outcome: str) -> None:
    gone(told)
    actions = told.tell(ev.StopRequested(signum=signum), 21.0)
    if signum == TERM:
        assert kinds(actions + told.tick()) == ["SeekCheckpoint"]
        assert told.now_s == pytest.approx(21.0, abs=0.01)
        actions = secured(told, 21.1)
    assert finish(actions).outcome == outcome


def test_one_who_saves_before_the_scheduler_says_why_was_cancelled_all_the_same(told: Told) -> None:
    told.running(term_grace_s=30.0, stop_grace_s=10.0)
    noticed(told, TERM, is_why_asked=True)
    assert kinds(secured(told, 20.3)) == ["StopAttempt"]
    assert told.tell(ev.SchedulerStatusChanged(why="cancelled"), 20.5) == []
    assert finish(told.stopped(21.0)).outcome == "interrupted"
    assert not told.incidents


@pytest.mark.parametrize("why", ["cancelled", "running"])
def test_scancel_of_the_job_or_of_the_step_ends_the_run_as_ever(told: Told, why: str) -> None:
    told.running()
    noticed(told, TERM)
    [stop] = told.tell(ev.SchedulerStatusChanged(why=why), 21.0)
    assert isinstance(stop, ac.StopAttempt) and stop.is_last
    summary = finish(told.stopped(22.0))
    assert (summary.outcome, summary.exit_code, told.incidents) == ("interrupted", 143, {})


@pytest.mark.parametrize(("signum", "outcome", "status"), [(TERM, "preempted", 143), (INT, "interrupted", 130)])
def test_a_second_signal_does_not_wait(told: Told, signum: int, outcome: str, status: int) -> None:
    """The launcher has told the ranks already."""
    told.running()
    noticed(told, TERM)
    assert kinds(told.tell(ev.StopRequested(signum=signum), 22.0)) == []
    actions = told.stopped(23.0)
    summary = finish(secured(told, 23.1, None) if kinds(actions) == ["SeekCheckpoint"] else actions)
    assert (summary.outcome, summary.exit_code) == (outcome, status)


def test_sigterm_after_a_warning_brings_the_end_nearer(told: Told) -> None:
    told.running(stop_grace_s=10.0, term_grace_s=30.0)
    noticed(told)
    noticed(told, TERM, 30.0)
    assert told.tell(ev.SchedulerStatusChanged(why="running"), 30.1) == [], "it was warned before"
    assert told.state.notice.deadline_s == 45.0


def test_the_time_limit(told: Told) -> None:
    told.running(save_before_end_s=120.0, stop_grace_s=10.0)
    told.tell(ev.SchedulerStatusChanged(end_s=1000.0), 5.0)
    told.step(900, 879.0)
    assert kinds(told.tell(ev.Ticked(), 880.001)) == ["WriteIncident", "AskCheckpoint"]
    assert (told.incidents["001"].cause, told.state.notice.deadline_s) == ("time_limit", 985.0)
    secured(told, 884.0)
    summary = finish(told.stopped(886.0))
    assert (summary.outcome, summary.exit_code, summary.reason) == ("preempted", 143, "time limit")


def test_a_short_job_keeps_half_of_its_time(told: Told) -> None:
    told.opened(save_before_end_s=120.0)
    told.tell(ev.SchedulerStatusChanged(end_s=60.1), 0.2)
    told.started(at_s=1.0)
    assert told.engine.next_deadline_s() <= 30.2  # type: ignore[operator]


def test_a_time_limit_that_was_raised(told: Told) -> None:
    told.running()
    told.tell(ev.SchedulerStatusChanged(end_s=100.0), 5.0)
    told.tell(ev.SchedulerStatusChanged(end_s=0.0), 6.0)
    told.step(11, 90.0)
    told.tick()
    assert told.state.notice.cause == ""


# Requeue -----------------------------------------------------------------------------------------------


def test_requeued_when_nothing_is_alive(told: Told) -> None:
    assert kinds(requeueable(told)) == ["WriteIncident", "Requeue"]
    assert finish(told.tell(ev.Requeued(is_done=True), 24.5)).outcome == "preempted"
    assert (told.incidents["001"].action, told.incidents["001"].evidence["requeued"]) == ("restart", True)


def test_a_requeue_that_is_refused_is_said(told: Told) -> None:
    requeueable(told)
    actions = told.tell(ev.Requeued(is_done=False, why="Job may not be requeued"), 24.5)
    assert any(isinstance(a, ac.Say) and "Job may not be requeued" in a.text for a in actions)
    assert told.incidents["001"].evidence["requeue_why"] == "Job may not be requeued"


def test_a_requeue_without_an_answer_ends_the_run_all_the_same(told: Told) -> None:
    requeueable(told)
    assert finish(told.tick()).outcome == "preempted"
    assert told.now_s == pytest.approx(654.0, abs=0.01)


@pytest.mark.parametrize("settings", [{"requeue": "never"}, {"is_named": False}, {"requeue": "auto"}], ids=str)
def test_not_requeued(told: Told, settings: dict[str, object]) -> None:
    """Not wanted; it could not be continued; the script was given the signal, and may requeue by itself."""
    assert finish(requeueable(told, **settings)).outcome == "preempted"


@pytest.mark.parametrize(("is_done", "outcome"), [(True, "interrupted"), (False, "gave_up")])
def test_a_quarantined_node_is_left_by_a_requeue(told: Told, is_done: bool, outcome: str) -> None:
    actions = left(told)
    [requeue] = [action for action in actions if isinstance(action, ac.Requeue)]
    assert (requeue.exclude, requeue.summary.outcome) == (["node-a"], "interrupted")
    assert finish(told.tell(ev.Requeued(is_done=is_done, why="no"), told.now_s + 1)).outcome == outcome


def test_a_quarantined_node_and_a_scheduler_that_does_not_answer(told: Told) -> None:
    left(told)
    assert "Requeue" in kinds(told.tell(ev.SupervisorRestarted()))
    assert finish(told.tick()).outcome == "interrupted", "the next start goes on with it"


# In other phases ---------------------------------------------------------------------------------------


def test_nothing_is_started_any_more(told: Told) -> None:
    told.running()
    told.crashed()
    assert told.phase is Phase.CHOOSING
    assert finish(noticed(told)).outcome == "preempted"


def test_an_attempt_that_is_being_started_is_asked_once_it_runs(told: Told) -> None:
    told.opened()
    assert kinds(noticed(told, at_s=0.5)) == []
    told.started(at_s=1.0)
    assert kinds(told.tick()) == ["AskCheckpoint"]
    secured(told, 5.0)
    finish(told.stopped(6.0))
    assert told.incidents["001"].summary.endswith("was whole after 4.5 s.")


def test_an_attempt_that_the_signal_kept_from_starting_is_no_failure(told: Told) -> None:
    told.opened()
    noticed(told, TERM, at_s=0.5, is_why_asked=True)
    lost = ev.AttemptNotStarted(attempt=0, error="SIGTERM came first")
    assert kinds(told.tell(lost, 0.6)) == [], "the scheduler is asked why"
    summary = finish(told.tell(ev.SchedulerStatusChanged(end_s=0.0, why="preempted"), 1.0))
    assert (summary.outcome, summary.exit_code) == ("preempted", 143)


def test_an_attempt_that_a_person_kept_from_starting(told: Told) -> None:
    told.opened()
    noticed(told, TERM, at_s=0.5, is_why_asked=True)
    told.tell(ev.AttemptNotStarted(attempt=0, error="SIGTERM came first"), 0.6)
    assert finish(told.tell(ev.SchedulerStatusChanged(end_s=0.0, why="cancelled"), 1.0)).outcome == "interrupted"


def test_a_crash_meanwhile_is_told_and_ends_the_run(told: Told) -> None:
    told.running(max_restarts=0)
    noticed(told)
    actions = told.crashed()
    assert kinds(actions) == ["WriteIncident", "SeekCheckpoint"]
    assert finish(secured(told, told.now_s + 0.1, None)).outcome == "preempted"
    assert (told.incidents["002"].cause, told.incidents["002"].action) == ("segfault", "none")


def test_an_attempt_that_is_being_stopped_for_another_reason(told: Told) -> None:
    told.running()
    told.exits(1, -11, 20.0)
    noticed(told, at_s=20.1)
    told.tick()
    told.read(20.6)
    assert "Requeue" not in kinds(told.stopped(21.0))
    assert told.phase is Phase.ENDED


def test_ranks_that_the_signal_met_first_have_not_crashed(told: Told) -> None:
    """Where every process of a job is signalled, in whatever order that is seen."""
    told.running()
    assert kinds(told.exits(0, -15, 20.0)) == ["StopAttempt"]
    noticed(told, TERM, 20.01)
    told.exits(1, -15, 20.02)
    assert finish(told.stopped(20.1)).exit_code == 143
    assert [i.kind for i in told.incidents.values()] == ["preemption"]


def test_ranks_that_leave_because_they_were_asked_have_not_finished(told: Told) -> None:
    told.running()
    noticed(told)
    told.tell(ev.CheckpointAnswered(request=1), 21.0)
    told.exits(0, 0, 22.0)
    told.exits(1, 0, 22.0)
    assert kinds(told.stopped(22.1)) == ["SeekCheckpoint"]
    assert finish(secured(told, 22.2)).outcome == "preempted"


def test_training_that_ends_well_before_it_was_asked_has_finished(told: Told) -> None:
    told.running()
    noticed(told)
    told.exits(0, 0, 22.0)
    told.exits(1, 0, 22.0)
    assert finish(told.stopped(22.1)).outcome == "finished"


def test_ranks_that_were_given_the_signal_save_in_their_own_time(told: Told) -> None:
    told.running()
    [ask] = [a for a in noticed(told, is_forwarded=True) if isinstance(a, ac.AskCheckpoint)]
    assert ask.is_quiet
    assert told.exits(0, 85, 25.0) == []
    assert kinds(told.exits(1, 85, 26.0)) == ["StopAttempt"]
    told.stopped(26.1)
    assert finish(secured(told, 26.2)).outcome == "preempted"


def test_a_new_supervisor_asks_again(told: Told) -> None:
    told.running()
    noticed(told)
    assert "AskCheckpoint" in kinds(told.tell(ev.SupervisorRestarted(), 25.0))


def test_only_watching_leaves_it_at_a_word(told: Told) -> None:
    told.running(act=False)
    assert kinds(noticed(told)) == []
    assert told.state.notice.cause == ""


def test_cancelled_while_the_exits_of_a_crash_are_read(told: Told) -> None:
    """Nothing of the attempt is alive any more: nobody else would end the run."""
    told.running()
    told.exits(1, -11, 20.0)
    told.tick()
    told.stopped(20.5)
    noticed(told, TERM, 20.6, is_why_asked=True)
    summary = finish(told.tell(ev.SchedulerStatusChanged(why="cancelled"), 20.7))
    assert (summary.outcome, summary.exit_code, summary.incidents) == ("interrupted", 143, [])


def test_noticed_after_the_signal_has_ended_all_ranks(told: Told) -> None:
    """Some schedulers signal every process of a job at once, and guardrun hears of it last."""
    told.running()
    told.exits(0, -15, 20.0)
    assert kinds(told.stopped(20.1)) == ["ReadExits"]
    noticed(told, TERM, 20.2)
    told.tell(ev.CheckpointCompleted(request=told.state.notice.request), 20.3)
    assert (told.phase, told.state.outcome) == (Phase.ENDED, "preempted")


def test_the_same_where_a_crash_was_told_without_a_culprit(told: Told) -> None:
    told.running()
    lost = ev.ErrorRecord(error="RuntimeError", message="Connection closed by peer", at_s=20.0)
    for rank in (0, 1):
        told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=rank, error=lost), 20.0)
    told.exits(0, -15, 20.0)
    told.tick()
    told.read(22.0)
    assert told.incidents["001"].culprits == []
    assert kinds(told.stopped(22.5)) == ["ReadExits"]
    noticed(told, USR1, 22.6, is_forwarded=True)
    assert (told.phase, told.incidents["001"].action) == (Phase.ENDED, "none")
    assert told.state.outcome == "preempted"
