"""Every pair of phase and event: the table knows it, the engine survives it, and nothing is awaited for ever."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

import guardrun.supervisor.engine
from guardrun.supervisor.engine.engine import _HANDLERS, Engine
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import IGNORE, OBSERVED, TABLE, InvalidTransition, Phase
from guardrun.supervisor.engine.state.state import SAVES_IN_TIME, enter
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import ERROR, Told

XID = Finding(
    id="gpu_xid/gpu:GPU-0",
    cause="gpu_xid",
    subject="gpu:GPU-0",
    since_s=0.0,
    told_s=0.0,
    summary="GPU 0 has sent Xid 48.",
    response=Response.RESTART,
)
EVENTS: tuple[type, ...] = get_args(ev.Event)


def _starting(told: Told) -> None:
    told.opened()


def _running(told: Told) -> None:
    told.running()


def _stopping(told: Told) -> None:
    told.running()
    told.exits(1, -11)


def _choosing(told: Told) -> None:
    told.running()
    told.crashed()


def _ending(told: Told) -> None:
    told.running()
    told.tell(ev.StopRequested(signum=15))


def _ended(told: Told) -> None:
    _ending(told)
    told.stopped()


def _gathering(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=1))


def _checking(told: Told) -> None:
    told.fleet_opened(2, spares=1, check_nodes="quick")


TO: dict[Phase, Callable[[Told], None]] = {
    Phase.NEW: lambda told: None,
    Phase.GATHERING: _gathering,
    Phase.CHECKING: _checking,
    Phase.STARTING: _starting,
    Phase.RUNNING: _running,
    Phase.STOPPING: _stopping,
    Phase.CHOOSING: _choosing,
    Phase.ENDING: _ending,
    Phase.ENDED: _ended,
}


def sample(event: type, told: Told) -> ev.Event:
    """An event of this type that is about the current attempt."""
    attempt = told.attempt
    samples: list[ev.Event] = [
        ev.RunOpened(run_id="run", settings=ev.Settings(), node="node-a", command=[], world_size=2, wall_s=0.0),
        ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=2, wall_s=0.0),
        ev.SupervisorRestarted(),
        ev.TimeSkipped(gap_s=3.0),
        ev.AttemptStarted(
            attempt=told.state.next_attempt, ranks=[ev.Rank(global_rank=0, local_rank=0, pid=7, node="node-a")]
        ),
        ev.AttemptNotStarted(attempt=told.state.next_attempt, error="no memory"),
        ev.NodeReport(
            node="node-a", attempt=attempt, ranks=[ev.RankReport(global_rank=0, progress=99, progress_s=told.now_s)]
        ),
        ev.UncaughtExceptionReported(attempt=attempt, global_rank=0, error=ERROR),
        ev.RankEnded(attempt=attempt, global_rank=0),
        ev.RankExited(attempt=attempt, global_rank=0, pid=100, exitcode=1, at_s=told.now_s),
        ev.ExitsRead(attempt=attempt, traces=[]),
        ev.AttemptStopped(attempt=attempt, exitcodes={0: 1, 1: -15}, stopped_by_us=[1]),
        ev.CheckpointSaved(attempt=attempt, global_rank=0, path="/out/a", step=3, duration_s=1.0),
        ev.CheckpointLoaded(attempt=attempt, global_rank=0, path="/out/a", step=3),
        ev.CheckpointOpened(attempt=attempt, path="/out/a"),
        ev.CheckpointChosen(choice=told.state.choice),
        ev.LookTaken(look=told.state.detectors.hang.look, attempt=attempt, ranks=[]),
        ev.NodeJoined(node="n0", slot=0, ranks=2),
        ev.NodeSuspected(node="n0", since_s=told.now_s - 5.0),
        ev.NodeContactRestored(node="n0"),
        ev.NodeLeft(node="n0", why="told to end"),
        ev.NodeAbsent(node="n7", why="n7 is quarantined", exit_code=69, is_final=True),
        ev.NodesChecked(check=1, faulty={"n1": "reaches none"}, said=["n0 and n2 are slow to each other"]),
        ev.NotIsolated(node="node-a", incident="001", why="released by ada"),
        ev.IsolationSettled(node="node-a", incident="001"),
        ev.NodeReleased(node="n0", at_s=told.now_s, who="ada"),
        ev.NodeFindingsReported(node="node-a", findings=[XID], devices={0: ev.Device(subject="gpu:GPU-0", index=0)}),
        ev.GcHeld(attempt=attempt, global_rank=0, duration_s=2.0, generation=2, collected=1, step=10),
        ev.BatchesNamed(attempt=attempt, global_rank=0, step=10, loader="a", why="", ahead=0, batches=[]),
        ev.ModulesDied(
            attempt=attempt,
            global_rank=0,
            step=9,
            since=5,
            what="output",
            modules=["a"],
            count=1,
            looks=1,
            every=1,
            alive=1,
        ),
        ev.GradientsGrew(attempt=attempt, global_rank=0, step=9, groups=[ev.GroupNorm("a", 1.0, 3.0)], count=1),
        ev.BatchesLeftOut(attempt=attempt, global_rank=0, order="001-0", step=10, batches=[[1]]),
        ev.DataReplayed(
            attempt=attempt,
            global_rank=0,
            status="repeated",
            loader="a",
            epoch=1,
            batches=2,
            samples=8,
            repeated=8,
            left_out=0,
            passed_over=0,
        ),
        ev.HooksMissing(attempt=attempt, global_ranks=[0], reason="-E"),
        ev.HistoryLoaded(places=[ev.PastPlace(place="exception in f (a.py)", runs=2, last="2026-11-20")]),
        ev.HoldSet(is_held=True, who="ada"),
        ev.RestartAsked(who="ada"),
        ev.ExaminationAsked(attempt=attempt, global_ranks=[0], what="allocations", seconds=60.0, who="ada"),
        ev.HandChangeAsked(attempt=attempt, id="a1", global_ranks=[0], verb="eval", text="1", seconds=10.0, who="ada"),
        ev.HandChangeEnded(attempt=attempt, id="a1", outcome="done"),
        ev.PreemptionNoticed(signum=15),
        ev.SchedulerStatusChanged(end_s=told.now_s + 300.0, may_requeue=True, why="preempted"),
        ev.CheckpointAsked(request=told.state.notice.request, at_call=7),
        ev.CheckpointAnswered(request=told.state.notice.request),
        ev.CheckpointCompleted(request=told.state.notice.request, checkpoint=ev.Checkpoint(path="/out/b", step=9)),
        ev.SavedInTime(
            request=told.state.requests,
            attempt=attempt,
            global_rank=0,
            checkpoint=ev.Checkpoint(path="/out/c", step=10),
        ),
        ev.Requeued(is_done=True),
        ev.StopRequested(signum=2),
        ev.Ticked(),
    ]
    return next(s for s in samples if type(s) is event)


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == {(phase, event) for phase in Phase for event in EVENTS}


def test_every_handler_exists_and_is_used() -> None:
    assert {row.handler for row in TABLE.values()} - {IGNORE, OBSERVED} == set(_HANDLERS)


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_every_pair(phase: Phase) -> None:
    def check(told: Told, event: type) -> None:
        assert told.phase is phase
        told.tell(sample(event, told), told.now_s + 1.0)
        # Whatever it led to, the same again, a late one, and time itself do no harm.
        told.tell(sample(event, told), told.now_s + 1.0)
        for _ in range(3):
            if told.engine.next_deadline_s() is not None:
                told.tick()
        told.tell(ev.SupervisorRestarted(), told.now_s + 1.0)
        told.check()

    _each_event(TO[phase], check)


def _fleet_starting(told: Told) -> None:
    told.fleet_opened(2, spares=1)


def _fleet_running(told: Told) -> None:
    _fleet_starting(told)
    told.fleet_started(1.0)
    told.step(10, 2.0)


def _fleet_stopping(told: Told) -> None:
    _fleet_running(told)
    told.exits(1, -11)


def _fleet_choosing(told: Told) -> None:
    _fleet_running(told)
    told.crashed()


def _fleet_ending(told: Told) -> None:
    _fleet_running(told)
    told.tell(ev.StopRequested(signum=15))


def _saving(told: Told) -> None:
    """A rank has died, and another one saves before it is ended."""
    told.opened(jit_s=30.0)
    told.started(at_s=1.0)
    reports = [
        ev.RankReport(global_rank=n, progress=10, progress_s=2.0, step=10, milestones=SAVES_IN_TIME) for n in (0, 1)
    ]
    told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=reports), 2.0)
    told.exits(1, -11)


def test_every_two_events_while_a_rank_saves() -> None:
    def check(told: Told, first: type) -> None:
        assert told.phase is Phase.STOPPING and told.state.attempt is not None
        assert told.state.attempt.in_time is not None and told.state.attempt.in_time.is_pending
        _check_pairs(told, first)

    _each_event(_saving, check)


FLEET_TO = [_gathering, _checking, _fleet_starting, _fleet_running, _fleet_stopping, _fleet_choosing, _fleet_ending]


@pytest.mark.parametrize("to", FLEET_TO, ids=lambda to: to.__name__.strip("_"))
def test_every_two_events_of_several_nodes(to: Callable[[Told], None]) -> None:
    _each_event(to, _check_pairs)


@pytest.mark.parametrize("phase", Phase, ids=lambda phase: phase.value)
def test_every_two_events(phase: Phase) -> None:
    """Two events in every phase, each followed by what is due."""
    _each_event(TO[phase], _check_pairs)


def _each_event(to: Callable[[Told], object], check: Callable[[Told, type], None]) -> None:
    """A run of its own for each event, brought to where it is to meet it."""
    for event in EVENTS:
        told = Told()
        to(told)
        try:
            check(told, event)
        except Exception as error:
            raise AssertionError(event.__name__) from error


def _check_pairs(told: Told, first: type) -> None:
    """An event, and after it each other."""
    _tell_and_tick(told, first)
    told.check()
    for second in EVENTS:
        branch = told.branch()
        _tell_and_tick(branch, second)
        branch.check()


def _tell_and_tick(told: Told, event: type) -> None:
    told.tell(sample(event, told), told.now_s + 1.0)
    if told.engine.next_deadline_s() is not None:
        told.tick()


def test_an_event_that_no_row_knows_names_both() -> None:
    class Unheard:
        pass

    with pytest.raises(InvalidTransition, match=r"Unheard in phase starting.*before it: RunOpened@0\.100"):
        told = Told()
        told.opened()
        told.engine.handle(Unheard(), 1.0)  # type: ignore[arg-type]


def test_a_handler_that_ends_where_its_row_does_not_lead_raises() -> None:
    told = Told()
    told.running()
    enter(told.state, Phase.ENDED)
    # As by a bug: what is over would go on.
    with (
        pytest.raises(InvalidTransition, match=r"Ticked in phase ended to running: no such transition"),
        pytest.MonkeyPatch.context() as patch,
    ):
        row = TABLE[Phase.ENDED, ev.Ticked]
        patch.setitem(TABLE, (Phase.ENDED, ev.Ticked), row._replace(handler="on_tick"))
        patch.setitem(_HANDLERS, "on_tick", lambda state, event, now_s: enter(state, Phase.RUNNING) or [])
        told.engine.handle(ev.Ticked(), 9.0)


def test_an_event_that_is_ignored_leads_nowhere() -> None:
    assert [key for key, row in TABLE.items() if row.handler == IGNORE and row.ends != {key[0]}] == []


def test_an_event_that_only_detectors_see_may_end_an_attempt_and_no_more() -> None:
    ways = {(phase, row.ends) for (phase, _), row in TABLE.items() if row.handler == OBSERVED}
    running = frozenset({Phase.RUNNING, Phase.STOPPING})
    assert (Phase.RUNNING, running) in ways
    assert all(ends == (running if phase is Phase.RUNNING else {phase}) for phase, ends in ways)


def test_the_phase_changes_in_one_place() -> None:
    """Read from the source: an assignment elsewhere would pass by the table."""
    folder = Path(guardrun.supervisor.engine.__file__ or "").parent
    found = [
        path.name
        for path in folder.rglob("*.py")
        if re.search(r"^ *[^(=\n]*\bstate\.phase\b[^(=\n]* = ", path.read_text(), re.MULTILINE)
        and path.name != "state.py"
    ]
    assert found == []


def test_ticks_before_their_time_change_nothing() -> None:
    told = Told()
    told.running()
    before = told.engine.snapshot()
    due_s = told.engine.next_deadline_s()
    assert due_s is not None
    assert told.engine.tick(due_s - 0.01) == []
    assert told.engine.snapshot() == before
    assert told.engine.tick(due_s) != []


def test_a_new_engine_waits_for_nothing() -> None:
    assert Engine().next_deadline_s() is None
