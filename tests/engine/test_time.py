"""Time that did not count, supervisors that come back, runs that are continued, hands off and on, signals."""

from __future__ import annotations

from itertools import pairwise

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import ERROR, Told, kinds

CHECKPOINT = ev.Checkpoint(path="/out/a", step=8)


def test_skipped_time_is_nobodys_silence(told: Told) -> None:
    told.running()
    told.tell(ev.TimeSkipped(gap_s=100.0), 110.0)
    assert told.engine.next_deadline_s() == pytest.approx(112.0, abs=1e-3), "8 s had been silent, of 10"
    assert told.state.ledger.spent_s["other"] == pytest.approx(100.0)


def test_a_stop_is_counted_from_the_skip_and_not_forgotten(told: Told) -> None:
    told.running()
    reports = [ev.RankReport(global_rank=1, state="T", progress=10, progress_s=2.0, step=10)]
    told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=reports), 3.0)
    told.tell(ev.TimeSkipped(gap_s=50.0), 53.0)
    assert told.state.attempt is not None and told.state.attempt.stopped == {1: 53.0}


def test_skipped_time_is_not_held_against_an_order(told: Told) -> None:
    told.opened()
    told.tell(ev.TimeSkipped(gap_s=100.0), 101.0)
    due_s = told.engine.next_deadline_s()
    assert due_s is not None and due_s > 129


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("starting", ["StartAttempt"]),
        ("running", []),
        ("looking", ["TakeLook"]),
        ("stopping", ["StopAttempt"]),
        ("reading", ["StopAttempt", "ReadExits"]),
        ("choosing", ["ChooseCheckpoint"]),
        ("ending", []),
        ("ended", ["FinishRun"]),
    ],
)
def test_a_new_supervisor_asks_for_what_was_under_way(told: Told, until: str, expected: list[str]) -> None:
    told.opened()
    if until != "starting":
        told.started(at_s=1.0)
        told.step(10, 2.0)
    if until == "looking":
        told.tick()
    elif until in ("stopping", "reading"):
        told.exits(1, -11, 5.0)
        if until == "reading":
            told.tick()
    elif until == "choosing":
        told.crashed()
    elif until in ("ending", "ended"):
        told.tell(ev.StopRequested(signum=15))
        if until == "ended":
            told.stopped()
    assert kinds(told.tell(ev.SupervisorRestarted(), told.now_s + 3)) == expected


def test_a_finished_run_is_finished_again_with_the_same_outcome(told: Told) -> None:
    told.running(max_restarts=0)
    told.crashed()
    [action] = told.tell(ev.SupervisorRestarted())
    assert isinstance(action, ac.FinishRun) and action.summary.outcome == "gave_up"


def test_what_a_new_supervisor_ordered_again_did_not_stop_those_that_the_first_one_stopped(told: Told) -> None:
    told.running(4)
    told.exits(1, -11, 5.0)
    for rank in (0, 2):
        told.exits(rank, -15, 5.5)
    told.tell(ev.SupervisorRestarted(), 8.0)
    told.tick()
    told.read(8.6)
    exits = told.incidents["001"].evidence["exits"]
    assert [e["rank"] for e in exits if not e["stopped_by_guardrun"]] == [1]


def continued(told: Told, at_s: float) -> list[ac.Action]:
    return told.tell(ev.RunContinued(settings=ev.Settings(), node="node-b", world_size=2, wall_s=0.0, session=1), at_s)


def test_a_continued_run_chooses_a_checkpoint_and_keeps_its_history(told: Told) -> None:
    told.running()
    told.step(20, 12.0)
    assert kinds(continued(told, 5000.0)) == ["ChooseCheckpoint"]
    actions = told.chosen(CHECKPOINT)
    assert actions[-1] == ac.StartAttempt(attempt=1, checkpoint=CHECKPOINT)
    assert told.state.attempts[0]["outcome"] == "guardrun ended"
    assert told.state.attempts[0]["ended_s"] == 12.0
    told.started(1, at_s=5001.0)
    told.step(15, 5010.0)
    lost_s = told.state.ledger.lost_s(5010.0)
    assert lost_s["other"] == pytest.approx(4988.0), "not training in between"
    assert lost_s["starting"] == pytest.approx(10.9 + 1.0, abs=2)


def test_a_continued_run_does_not_rewrite_what_an_earlier_incident_resumed_from(told: Told) -> None:
    told.running()
    told.crashed()
    told.restarted(20, CHECKPOINT)
    continued(told, 5000.0)
    told.chosen(ev.Checkpoint(path="/out/b", step=19))
    assert told.incidents["001"].resumed_from == CHECKPOINT


def test_an_interrupted_run_can_be_continued(told: Told) -> None:
    told.running()
    told.tell(ev.StopRequested(signum=15))
    assert kinds(told.stopped()) == ["FinishRun"]
    continued(told, 500.0)
    told.chosen(CHECKPOINT)
    told.started(1)
    assert told.phase is Phase.RUNNING
    assert (told.state.signum, told.state.outcome, told.state.exit_code) == (0, "running", 0)


def test_held_hands_leave_a_fall_alone(told: Told) -> None:
    told.running()
    assert kinds(told.tell(ev.HoldSet(is_held=True, who="ada"))) == []
    assert told.tell(ev.HoldSet(is_held=True, who="bob")) == []
    assert kinds(told.exits(1, -11, 5.0)) == []
    assert kinds(told.tick()) == ["ReadExits"]
    assert kinds(told.read(5.5)) == ["WriteIncident"]
    assert told.incidents["001"].action == "none"
    assert kinds(told.tell(ev.HoldSet(is_held=False, who="ada"), 60.0)) == ["StopAttempt"]
    assert kinds(told.stopped(61.0)) == ["WriteIncident", "ChooseCheckpoint"]
    assert told.incidents["001"].action == "restart"


def test_there_is_nothing_to_hold_when_all_have_fallen(told: Told) -> None:
    told.running()
    told.tell(ev.HoldSet(is_held=True, who="ada"))
    told.exits(1, -11, 5.0)
    assert kinds(told.exits(0, 1, 5.2)) == ["StopAttempt"]


def test_unhold_after_a_rank_raised_and_stayed(told: Told) -> None:
    """It was told under the hold; nothing else would ever stop it."""
    told.running()
    told.tell(ev.HoldSet(is_held=True, who="ada"))
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=ERROR), 5.0)
    assert kinds(told.tick()) == ["ReadExits"]
    told.read(26.0)
    assert told.incidents["001"].cause == "exception"
    assert kinds(told.tell(ev.HoldSet(is_held=False, who="ada"), 60.0)) == ["StopAttempt"]


def test_unhold_while_what_a_rank_raised_is_being_read(told: Told) -> None:
    told.running()
    told.tell(ev.HoldSet(is_held=True, who="ada"))
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=ERROR), 5.0)
    assert kinds(told.tick()) == ["ReadExits"]
    assert kinds(told.tell(ev.HoldSet(is_held=False, who="ada"))) == ["StopAttempt"]
    told.read(26.0)
    assert "ChooseCheckpoint" in kinds(told.stopped(27.0))


def test_a_rank_that_raised_and_trains_on_has_not_failed(told: Told) -> None:
    told.running()
    raised = ev.ErrorRecord(error="ValueError", at_s=5.0)
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=raised), 5.0)
    told.step(11, 20.0)
    assert told.tick() == []
    assert not told.state.is_crashing and told.phase is Phase.RUNNING
    assert told.state.attempt is not None and told.state.attempt.ranks[1].error is None, "it is no evidence later"


def test_exits_that_are_not_read_are_asked_for_again_and_again_with_time_in_between(told: Told) -> None:
    told.running()
    told.exits(1, -11, 5.0)
    told.stopped(6.0)
    asked_s = []
    for _ in range(4):
        told.tick()
        asked_s.append(told.now_s)
    assert all(after - before >= 29 for before, after in pairwise(asked_s))


def test_what_was_read_before_all_had_ended_is_read_again(told: Told) -> None:
    told.running()
    told.exits(1, 1, 5.0)
    told.tick()
    told.stopped(6.0)
    assert kinds(told.read(6.1)) == ["ReadExits"]
    error = {"error": "ValueError", "message": "bad", "at_s": 4.9}
    actions = told.read(6.2, traces=[{"global_rank": 1, "error": error}])
    assert kinds(actions)[-1] == "ChooseCheckpoint"
    assert told.incidents["001"].cause == "exception"


def test_a_choice_that_takes_long_counts(told: Told) -> None:
    told.running()
    told.crashed()
    asked = told.state.choice
    again, said = told.tick()
    assert again == ac.ChooseCheckpoint(choice=asked)
    assert isinstance(said, ac.Say) and "have not answered for 30 s" in said.text
    assert told.tick() == [ac.ChooseCheckpoint(choice=asked)], "said once"
    assert kinds(told.chosen(CHECKPOINT))[-1] == "StartAttempt"
    assert told.tell(ev.CheckpointChosen(choice=asked)) == [], "the second answer"


def test_orders_without_an_answer_are_given_again(told: Told) -> None:
    told.opened()
    assert told.tick() == [ac.StartAttempt(attempt=0)]
    told.started(at_s=told.now_s)
    told.exits(1, -11, told.now_s + 1)
    told.tick()
    told.read()
    assert kinds(told.tick()) == ["StopAttempt"]


def test_a_stop_that_comes_before_anything_runs(told: Told) -> None:
    told.opened()
    [action] = told.tell(ev.StopRequested(signum=2))
    assert isinstance(action, ac.FinishRun) and action.exit_code == 130


def test_a_start_that_crossed_the_users_stop_is_watched_to_its_end(told: Told) -> None:
    told.running()
    told.tell(ev.StopRequested(signum=15), 5.0)
    told.started(0, at_s=5.1)
    assert told.phase is Phase.ENDING
    [action] = told.stopped(6.0)
    assert isinstance(action, ac.FinishRun) and action.exit_code == 143


def test_a_start_that_is_told_twice_changes_nothing(told: Told) -> None:
    told.running()
    told.exits(0, 0, 5.0)
    told.started(0, at_s=5.5)
    assert told.state.attempt is not None and told.state.attempt.alive == 1


def test_torchruns_agent_restarts_by_its_own_rules(told: Told) -> None:
    told.running(is_torchrun_agent=True)
    assert kinds(told.exits(1, -9, 5.0)) == ["StopAttempt"]
    told.tick()
    told.read(5.5)
    told.started(1, at_s=6.0)
    assert told.phase is Phase.RUNNING
    assert told.incidents["001"].action == "restart"
    assert [a["outcome"] for a in told.state.attempts] == ["killed"]
    told.step(11, 8.0)
    assert told.incidents["001"].recovered_s == 8.0
    told.now_s = 9.0
    [*_, last] = told.crashed()
    assert isinstance(last, ac.FinishRun)
    assert (last.summary.outcome, last.summary.reason) == ("gave_up", "torchrun's agent has ended")


def test_torchruns_agent_restarts_before_the_exits_have_been_read(told: Told) -> None:
    told.running(is_torchrun_agent=True)
    told.exits(1, -9, 5.0)
    told.started(1, at_s=5.2)
    assert told.incidents["001"].cause == "killed"
    assert told.read(5.3) == []
