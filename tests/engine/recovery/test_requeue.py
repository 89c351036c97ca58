"""A scheduler that is away for a while: what is asked of it is asked again, and not forgotten by who comes next."""

from __future__ import annotations

import signal

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.recovery.requeue import LAST_S, PATIENCE_S
from tests.engine.conftest import Told
from tests.engine.recovery.preemptions import finish, left, noticed, requeueable, secured


def asked(actions: list[ac.Action]) -> ac.Requeue:
    [found] = [action for action in actions if isinstance(action, ac.Requeue)]
    return found


def isolated(actions: list[ac.Action]) -> list[tuple[str, str]]:
    return [(action.node, action.cause) for action in actions if isinstance(action, ac.Isolate)]


@pytest.mark.parametrize(
    ("end_s", "until_s"),
    [(200.0, 200.0 - LAST_S), (4000.0, 24.0 + PATIENCE_S), (0.0, 24.0 + PATIENCE_S), (10.0, 24.0 + PATIENCE_S)],
)
def test_a_requeue_is_tried_as_long_as_the_job_has(told: Told, end_s: float, until_s: float) -> None:
    told.running(is_named=True)
    told.tell(ev.SchedulerStatusChanged(end_s=end_s, may_requeue=True), 5.0)
    noticed(told, is_forwarded=False)
    secured(told, 23.0)
    assert asked(told.stopped(24.0)).until_s == pytest.approx(until_s, abs=0.01)


def test_after_sigterm_it_is_tried_until_the_ranks_would_be_killed(told: Told) -> None:
    told.running(is_named=True, term_grace_s=30.0)
    told.tell(ev.SchedulerStatusChanged(may_requeue=True), 5.0)
    told.tell(ev.PreemptionNoticed(signum=int(signal.SIGTERM)), 20.0)
    secured(told, 23.0)
    assert asked(told.stopped(24.0)).until_s == pytest.approx(50.0 - LAST_S, abs=0.01)


def test_a_job_that_is_cancelled_after_a_warning_is_not_started_again(told: Told) -> None:
    told.running(is_named=True)
    told.tell(ev.SchedulerStatusChanged(end_s=4000.0, may_requeue=True), 5.0)
    noticed(told)
    told.tell(ev.SchedulerStatusChanged(end_s=60.0, why="cancelled", may_requeue=True), 21.0)
    secured(told, 23.0)
    assert finish(told.stopped(24.0)).requeue == ""


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (ev.Requeued(is_done=True), "done"),
        (ev.Requeued(is_done=False, why="no"), "refused"),
        (ev.Requeued(is_done=False, why="no answer", is_silent=True), "unanswered"),
    ],
)
def test_what_became_of_it_is_told(told: Told, answer: ev.Requeued, state: str) -> None:
    assert asked(requeueable(told)).summary.requeue == "asked"
    assert finish(told.tell(answer, 300.0)).requeue == state


def test_a_run_that_leaves_a_node_is_unfinished_where_nobody_answered(told: Told) -> None:
    asked(left(told))
    ended = finish(told.tell(ev.Requeued(is_done=False, why="no answer", is_silent=True)))
    assert (ended.outcome, ended.requeue) == ("interrupted", "unanswered")


@pytest.mark.parametrize(("signum", "state"), [(signal.SIGINT, "refused"), (signal.SIGTERM, "unanswered")])
def test_a_signal_while_it_is_tried_is_not_made_to_wait(told: Told, signum: signal.Signals, state: str) -> None:
    requeueable(told)
    ended = finish(told.tell(ev.StopRequested(signum=int(signum)), 30.0))
    assert (ended.outcome, ended.exit_code, ended.requeue) == ("preempted", 128 + signum, state)


def test_a_person_who_ends_a_run_that_would_leave_a_node(told: Told) -> None:
    left(told)
    ended = finish(told.tell(ev.StopRequested(signum=int(signal.SIGINT))))
    assert (ended.outcome, ended.exit_code, ended.requeue) == ("interrupted", 130, "refused")


# Isolating ---------------------------------------------------------------------------------------------


def go_on(told: Told, after_s: float) -> list[ac.Action]:
    """The job was killed, and is continued."""
    continued = ev.RunContinued(
        settings=told.state.settings, node="node-b", world_size=2, wall_s=0.0, session=told.state.session + 1
    )
    return told.tell(continued, told.now_s + after_s)


def test_a_job_killed_in_the_middle_of_isolating_completes_it(told: Told) -> None:
    left(told)
    assert isolated(go_on(told, 200.0)) == [("node-a", "gpu_ecc")]
    assert isolated(go_on(told, 100.0)) == [("node-a", "gpu_ecc")], "again, until it is known to be done"
    told.tell(ev.IsolationSettled(node="node-a", incident="077"))
    assert isolated(told.tell(ev.SupervisorRestarted())) == [("node-a", "gpu_ecc")], "that was another one"
    told.tell(ev.IsolationSettled(node="node-a", incident="001"))
    assert isolated(told.tell(ev.SupervisorRestarted())) == []
    assert isolated(go_on(told, 10.0)) == [], "somebody may have undone it since"


def test_an_isolation_that_is_a_day_old_is_not_gone_on_with(told: Told) -> None:
    left(told)
    assert isolated(go_on(told, 90000.0)) == []


def test_an_isolation_that_may_not_be_is_not_tried_again(told: Told) -> None:
    left(told)
    told.tell(ev.NotIsolated(node="node-a", incident="001", why="ada has released it"))
    assert isolated(go_on(told, 10.0)) == []


# A time limit is a limit ---------------------------------------------------------------------------------------------

USR1, TERM = int(signal.SIGUSR1), int(signal.SIGTERM)
NOW = {"is_named": True, "goes_past_limit": False}


def ends(told: Told, *, end_s: float, signum: int = USR1, why: str = "running", step: int = 20) -> list[ac.Action]:
    """The job is about to end; a checkpoint is there, nothing is alive any more."""
    if signum:
        told.tell(ev.SchedulerStatusChanged(end_s=end_s, may_requeue=True), told.now_s)
        told.tell(ev.PreemptionNoticed(signum=signum), told.now_s + 1)
        told.tell(ev.SchedulerStatusChanged(end_s=end_s, may_requeue=True, why=why), told.now_s)
    else:
        told.tell(ev.SchedulerStatusChanged(end_s=told.now_s + 4, may_requeue=True), told.now_s)
        told.tick()
    if step:
        secured(told, told.now_s + 1, ev.Checkpoint(path=f"/out/{step}", step=step))
    else:
        while told.state.attempt is not None and not told.state.notice.is_stopping:
            told.tick()
    actions = told.stopped(told.now_s + 1)
    return secured(told, told.now_s, None) if any(isinstance(one, ac.SeekCheckpoint) for one in actions) else actions


@pytest.mark.parametrize(
    ("signum", "left_s", "why", "is_limit"),
    [
        (0, 0, "", True),
        (USR1, 180, "running", True),
        (TERM, 30, "time_limit", True),
        (USR1, 180, "preempted", False),
        (TERM, 30, "preempted", False),
        (USR1, 80_000, "running", False),
        (USR1, 0, "running", False),
    ],
    ids=["near", "its warning", "its SIGTERM", "preempted", "preempted by SIGTERM", "by hand", "without a limit"],
)
def test_a_job_is_requeued_beyond_its_limit_only_where_that_is_wanted(
    told: Told, signum: int, left_s: float, why: str, is_limit: bool
) -> None:
    told.running(**NOW)  # type: ignore[arg-type]
    other = told.branch()
    other.begin_with(settings=ev.Settings(is_named=True))
    end_s = told.now_s + left_s if left_s else 0.0
    actions = ends(told, end_s=end_s, signum=signum, why=why)
    asked_for = [one for one in actions if isinstance(one, ac.Requeue)]
    assert bool(asked_for) != is_limit
    if is_limit:
        ended = finish(actions)
        assert (ended.outcome, ended.requeue) == ("preempted", "")
        said = [one.text for one in actions if isinstance(one, ac.Say)]
        assert any("is not requeued: its time limit is a limit" in text for text in said)
    assert asked(ends(other, end_s=end_s, signum=signum, why=why)), "time_limit"
    other.check()


# No further ----------------------------------------------------------------------------------------------------------


def again(told: Told, session: int, resumed: int) -> None:
    """The requeued job: the next guardrun goes on with the run."""
    told.tell(ev.Requeued(is_done=True), told.now_s + 0.5)
    now = ev.Settings(is_named=True, goes_past_limit=True)
    told.tell(ev.RunContinued(settings=now, node="node-a", world_size=2, wall_s=0.0, session=session), told.now_s + 100)
    told.chosen(ev.Checkpoint(path=f"/out/{resumed}", step=resumed) if resumed else None)
    told.started(told.state.next_attempt, at_s=told.now_s + 1)
    told.step(resumed + 5, told.now_s + 1)


@pytest.mark.parametrize("saved", [0, 20], ids=["never saves", "saves the same step"])
def test_a_job_that_gets_no_further_is_not_requeued_for_ever(told: Told, saved: int) -> None:
    told.running(**{**NOW, "goes_past_limit": True})  # type: ignore[arg-type]
    for session in range(1, 4):
        assert asked(ends(told, end_s=told.now_s + 180, step=saved))
        again(told, session, saved)
    actions = ends(told, end_s=told.now_s + 180, step=saved)
    assert finish(actions).outcome == "preempted"
    said = [one.text for one in actions if isinstance(one, ac.Say)]
    assert any("is not requeued: 3 requeues in a row got no further" in text for text in said), said


def test_one_that_gets_further_is(told: Told) -> None:
    told.running(**{**NOW, "goes_past_limit": True})  # type: ignore[arg-type]
    for session in range(1, 12):
        # A quarter of the sessions is cut off before their first save.
        assert asked(ends(told, end_s=told.now_s + 180, step=10 * session if session % 4 else 0))
        again(told, session, 10 * (session if session % 4 else session - 1))
