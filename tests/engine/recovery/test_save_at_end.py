"""A job that is about to end, whose ranks never ask should_checkpoint(): their script's save_with() is called."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.voluntary.in_time import FAILED
from tests.engine.conftest import Told, kinds
from tests.engine.recovery.falling import JIT_S, numeric, training
from tests.engine.recovery.preemptions import SAVED, TERM, USR1, finish, noticed, secured

AT_S = 20.0
"""When the warning comes."""


def warned(told: Told, signum: int = USR1, **settings: object) -> ac.SaveInTime | None:
    """Training, warned, and nobody asks: who is asked to save."""
    training(told, **{"floor_s": 1000.0, **settings})  # type: ignore[arg-type]
    noticed(told, signum, AT_S)
    return unasked(told, AT_S + 1.0)


def unasked(told: Told, at_s: float) -> ac.SaveInTime | None:
    actions = told.tell(ev.CheckpointAsked(request=told.state.notice.request, at_call=0), at_s)
    orders = [action for action in actions if isinstance(action, ac.SaveInTime)]
    return orders[0] if orders else None


def answer(told: Told, order: ac.SaveInTime, at_s: float, **more: object) -> list[ac.Action]:
    known = {"global_rank": 0, "has_begun": True, **more}
    return told.tell(ev.SavedInTime(request=order.request, attempt=0, **known), at_s)  # type: ignore[arg-type]


def asks(actions: list[ac.Action]) -> list[float]:
    return [action.since_s for action in actions if isinstance(action, ac.AskCheckpoint)]


def passed_over(actions: list[ac.Action]) -> list[ac.Spoiled]:
    [one] = [action for action in actions if isinstance(action, ac.AskCheckpoint)]
    return one.spoiled


def sought(actions: list[ac.Action]) -> list[ac.Spoiled]:
    [seek] = [action for action in actions if isinstance(action, ac.SeekCheckpoint)]
    return seek.spoiled


def test_one_saves_while_all_train_on_and_the_run_ends(told: Told) -> None:
    order = warned(told)
    assert order is not None and order.is_running
    assert (order.global_ranks, order.alive, order.until_s) == ([0, 1, 2], [0, 1, 2], AT_S + 1.0 + JIT_S)
    assert told.state.phase is Phase.RUNNING and told.step(13, 21.5) == []
    actions = answer(told, order, 22.0, checkpoint=SAVED, took_s=0.4)
    assert kinds(actions) == ["WriteIncident", "StopAttempt"]
    [said] = [action.text for action in actions if isinstance(action, ac.Say)]
    assert said == "rank 0 saved step 12 in 0.4 s before the job's end: /out/c"
    summary = finish(told.stopped(24.0))
    assert (summary.outcome, summary.restarts) == ("preempted", 0)
    [incident] = told.incidents.values()
    assert incident.evidence["jit"] == {"rank": 0, "step": 12, "path": "/out/c", "took_s": 0.4}
    assert incident.evidence["in_time"] and incident.evidence["saved_in_s"] == 2.0
    assert incident.evidence["checkpoint"] == {"path": "/out/c", "step": 12}
    assert incident.summary.endswith("checkpoint /out/c (step 12) was whole after 2.0 s.")


def test_nobody_has_longer_than_the_job(told: Told) -> None:
    """SIGTERM leaves the ranks 15 s, and jit_s is 20."""
    order = warned(told, TERM)
    assert order is not None and order.until_s == told.state.notice.deadline_s == AT_S + 15.0
    assert kinds(told.tick())[-1] == "StopAttempt" and told.now_s == pytest.approx(AT_S + 15.0, abs=1e-3)
    assert answer(told, order, told.now_s + 0.5, checkpoint=SAVED) == [], "too late"
    [one] = sought(told.stopped(told.now_s + 1.0))
    assert (one.since_s, one.until_s, one.why) == (AT_S + 1.0, told.now_s, FAILED)
    assert finish(secured(told, told.now_s + 1.0, None)).outcome == "preempted"
    [incident] = told.incidents.values()
    assert incident.evidence["in_time"] is False
    assert incident.evidence["jit"] == {"why": "the ranks were stopped before it was done"}


def test_where_it_fails_any_later_checkpoint_is_waited_for(told: Told) -> None:
    """What is seen while it goes on may be its own, of which nothing is known yet."""
    order = warned(told)
    assert order is not None
    first = told.state.notice.request
    assert secured(told, 21.5) == []
    actions = answer(told, order, 22.0, why="rank 0: OSError: full")
    assert asks(actions) == [22.0] and told.state.notice.request > first
    [doubt] = passed_over(actions)
    assert (doubt.attempt, doubt.since_s, doubt.why) == (0, 21.0, FAILED) and doubt.until_s > 1e6, "it may be at it yet"
    assert [action.text for action in actions if isinstance(action, ac.Say)] == [
        "no just-in-time checkpoint: rank 0: OSError: full"
    ]
    assert unasked(told, 23.0) is None, "once"
    assert told.tell(ev.CheckpointCompleted(request=first, checkpoint=SAVED), 24.0) == [], "of the request before"
    assert kinds(secured(told, 30.0))[-1] == "StopAttempt"
    finish(told.stopped(31.0))
    [incident] = told.incidents.values()
    assert incident.evidence["jit"] == {"why": "rank 0: OSError: full"} and incident.evidence["in_time"]
    told.tell(ev.RunContinued(settings=ev.Settings(), node="node-a", world_size=3, wall_s=0.0), 40.0)
    assert [one.why for one in told.state.spoiled] == [FAILED], "the same command does not go on from it"


def test_where_nothing_was_called_what_is_there_counts(told: Told) -> None:
    order = warned(told)
    assert order is not None
    actions = answer(told, order, 22.0, why="rank 1 is saving by itself", has_begun=False)
    assert asks(actions) == [AT_S] and passed_over(actions) == []
    secured(told, 23.0)
    finish(told.stopped(24.0))
    assert told.state.spoiled == []


def test_what_never_comes_is_waited_for_no_longer_than_it_may_take(told: Told) -> None:
    order = warned(told)
    assert order is not None
    actions = told.tick()
    assert told.now_s == pytest.approx(order.until_s, abs=1e-3) and asks(actions) == [told.now_s]
    assert told.state.phase is Phase.RUNNING
    assert answer(told, order, told.now_s + 1.0, checkpoint=SAVED) == []


def test_that_the_others_wait_for_it_is_no_hang(told: Told) -> None:
    order = warned(told, floor_s=2.0, jit_s=120.0)
    assert order is not None
    assert kinds(told.tick()) == ["AskCheckpoint"] and told.now_s > AT_S + 120.0, "nothing is looked at before"
    assert "TakeLook" in kinds(told.tick())


def test_a_crash_meanwhile_ends_it(told: Told) -> None:
    order = warned(told)
    assert order is not None
    told.exits(1, -9, 21.5)
    assert told.state.phase is Phase.STOPPING
    assert answer(told, order, 22.0, checkpoint=SAVED) == []
    told.tick()
    told.read(told.now_s + 0.1)
    assert [one.since_s for one in sought(told.stopped(23.0))] == [21.0]


def test_a_supervisor_after_this_one_takes_nothing_of_it(told: Told) -> None:
    order = warned(told)
    assert order is not None
    actions = told.tell(ev.SupervisorRestarted(), 22.0)
    assert asks(actions) == [22.0]
    assert answer(told, order, 23.0, checkpoint=SAVED) == []
    assert unasked(told, 24.0) is None


@pytest.mark.parametrize("settings", [{"saving": ()}, {"jit_s": 0.0}, {"act": False}])
def test_who_is_not_asked(settings: dict[str, object], told: Told) -> None:
    assert warned(told, **settings) is None


def test_what_is_spoilt_is_not_saved(told: Told) -> None:
    told = told.branch()  # who decides is called by hand
    training(told)
    numeric(told)
    noticed(told, USR1, AT_S)
    actions = told.tell(ev.CheckpointAsked(request=told.state.notice.request, at_call=0), 21.0)
    assert [action.text for action in actions if isinstance(action, ac.Say)] == [
        "no just-in-time checkpoint: what is trained is spoilt (nan_loss)"
    ]


def test_ranks_that_ask_save_by_themselves(told: Told) -> None:
    training(told)
    noticed(told, USR1, AT_S)
    assert told.tell(ev.CheckpointAsked(request=told.state.notice.request, at_call=40), 20.5) == []


def test_a_hold_does_not_keep_it_back(told: Told) -> None:
    training(told)
    told.tell(ev.HoldSet(is_held=True, who="ada"), 15.0)
    noticed(told, USR1, AT_S)
    assert unasked(told, 21.0) is not None
