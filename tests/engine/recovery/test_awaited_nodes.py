"""A lost node is isolated once it has not been back for a while: frozen for a minute, nothing is done to it."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import incident, isolated, led, requeue_of, silent, starts, stopped_and_chosen

WAITS_S = 90.0


def lost(told: Told, *nodes: str, most: int = 3, spares: int = 2) -> float:
    """Lost, and told; when they will be isolated."""
    led(told, most, spares, isolate_lost_s=WAITS_S)
    silent(told, 3.0, *(nodes or ("n1",)))
    actions = told.tick()
    assert incident(told).action == "isolate_node" and not isolated(actions)
    return told.now_s + WAITS_S


def begun_again(told: Told) -> None:
    assert starts(stopped_and_chosen(told))
    told.fleet_started(told.now_s + 1.0)
    told.step(20, told.now_s + 1.0)


def isolated_until(told: Told, until_s: float) -> list[str]:
    """Who is isolated while the job trains on until then."""
    found = []
    while told.now_s < until_s:
        told.step(int(told.now_s) + 30, told.now_s + 5.0)
        while (due_s := told.engine.next_deadline_s()) is not None and due_s <= told.now_s:
            found += isolated(told.tick())
    return found


def test_it_is_isolated_where_it_does_not_come_back(told: Told) -> None:
    due_s = lost(told)
    begun_again(told)
    assert isolated_until(told, due_s - 6.0) == []
    assert isolated_until(told, due_s + 6.0) == ["n1"]
    assert isolated_until(told, due_s + 200.0) == [], "once"
    assert incident(told).action == "isolate_node"


@pytest.mark.parametrize("is_begun", [False, True], ids=["before the next attempt", "after its start"])
def test_who_is_back_in_time_is_not(told: Told, is_begun: bool) -> None:
    due_s = lost(told)
    if is_begun:
        begun_again(told)
    actions = told.joined("n1", 1)
    assert "WithdrawIsolation" not in kinds(actions) and told.incidents["001"].action == "restart"
    if not is_begun:
        begun_again(told)
    assert isolated_until(told, due_s + 6.0) == []
    assert told.incidents["001"].action == "restart" and told.state.nodes.unsettled == {}


def test_of_two_the_one_that_is_back_is_spared(told: Told) -> None:
    due_s = lost(told, "n1", "n2", most=4)
    begun_again(told)
    told.joined("n2", 2)
    assert told.incidents["001"].action == "isolate_node"
    assert isolated_until(told, due_s + 6.0) == ["n1"]


@pytest.mark.parametrize(("attempt", "times"), [(-1, 2), (0, 4)], ids=["without its ranks", "with its ranks"])
def test_who_is_back_too_often_is_left_out_but_not_drained(told: Told, attempt: int, times: int) -> None:
    """A node that stops the job again and again in a week costs it a spare, and other jobs nothing."""
    lost(told)
    for _ in range(times - 1):
        told.joined("n1", 1, attempt=attempt)
        [start] = starts(stopped_and_chosen(told))
        assert "n1" in start.nodes
        told.fleet_started(told.now_s + 1.0)
        told.step(int(told.now_s), told.now_s + 1.0)
        silent(told, told.now_s + 1.0, "n1")
        told.tick()
    told.joined("n1", 1, attempt=attempt)
    [start] = starts(stopped_and_chosen(told))
    assert "n1" not in start.nodes and incident(told).action == "isolate_node"
    told.fleet_started(told.now_s + 1.0)
    assert isolated_until(told, told.now_s + 2 * WAITS_S) == []


def test_at_the_run_s_end_nobody_would_see_it_come_back(told: Told) -> None:
    lost(told)
    begun_again(told)
    ended = [told.exits(rank, 0) for rank in sorted(told.state.attempt.ranks)] if told.state.attempt else []
    actions = [action for part in [*ended, told.stopped()] for action in part]
    assert isolated(actions) == ["n1"] and kinds(actions).index("Isolate") < kinds(actions).index("FinishRun")


def test_nor_in_a_job_that_is_requeued(told: Told) -> None:
    led(told, 2, 0, isolate_lost_s=WAITS_S, is_named=True)
    told.tell(ev.SchedulerStatusChanged(may_requeue=True))
    silent(told, 3.0, "n1")
    told.tick()
    stopped_and_chosen(told)
    before = len(told.journal)
    assert requeue_of(told).exclude == ["n1"]
    assert b'"isolate"' in b"".join(entry[2] for entry in told.journal[before:])


def test_time_in_which_the_job_was_suspended_does_not_count(told: Told) -> None:
    due_s = lost(told)
    begun_again(told)
    told.tell(ev.TimeSkipped(gap_s=600.0), told.now_s + 600.0)
    assert isolated_until(told, due_s + 594.0) == []
    assert isolated_until(told, due_s + 606.0) == ["n1"]


def test_a_supervisor_that_is_started_anew_waits_on(told: Told) -> None:
    due_s = lost(told)
    begun_again(told)
    assert isolated(told.tell(ev.SupervisorRestarted())) == []
    assert isolated_until(told, due_s + 6.0) == ["n1"]


def test_a_run_that_is_continued_does_not(told: Told) -> None:
    """Its job is another one: whoever died there did not say when."""
    lost(told)
    settings = ev.Settings(isolate_lost_s=WAITS_S)
    plan = ev.FleetPlan(least=3, most=3, spares=2)
    again = ev.RunContinued(settings=settings, node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan)
    assert isolated(told.tell(again, 60.0)) == ["n1"]
