"""Failures without a cause: when they are held against a node, and when they are chance, or the script's own."""

from __future__ import annotations

import random
from typing import Any

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import CHANCE, MEMORY_S, Standing, Strike, attributed_failures, kept
from tests.engine.conftest import Told

DAY_S = 86400.0
LAUNCH = ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: unspecified launch failure")
ILLEGAL = ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: an illegal memory access was encountered")
SEGFAULT = None


def strikes(*numbers: int, is_device: bool = True) -> list[Strike]:
    return [Strike(incident=f"{n:03d}", at_s=float(n), number=n, is_device=is_device) for n in numbers]


def test_how_often_is_more_than_chance_depends_on_how_many_nodes_there_are() -> None:
    assert attributed_failures(strikes(1, 2, is_device=False), 4) == 2, "in a row: a doubt is worth a spare, in any job"
    assert not attributed_failures(strikes(1) + strikes(2, is_device=False), 4), "the script's, both, it may be"
    assert not attributed_failures(strikes(1, 2), 4), "one in four is chance"
    assert attributed_failures(strikes(1, 2, 3, 4, 5, 6), 4) == 6, "five more of four nodes: one case of 1,024"
    assert not attributed_failures(strikes(1, 3, is_device=False), 100)
    assert attributed_failures(strikes(1, 3, 6), 100) == 3 and not attributed_failures(strikes(1, 3, 7), 100)
    assert attributed_failures(strikes(1, 11), 10_000) == 2 and not attributed_failures(strikes(1, 12), 10_000)
    assert attributed_failures(strikes(1, 200, 400), 10_000) == 3
    assert not attributed_failures(strikes(7), 10_000) and not attributed_failures([], 10_000)


@pytest.mark.parametrize("nodes", [16, 1000, 10_000])
def test_nodes_that_fail_by_chance_are_left_alone(nodes: int) -> None:
    """Failures at random: of those that are blamed for nothing there is about one in so many as is meant."""
    chance, had, swapped, played = random.Random(nodes), {}, 0, 100_000
    for number in range(1, played):
        node = chance.randrange(nodes)
        had[node] = [*had.get(node, [])[-8:], *strikes(number)]
        if attributed_failures(had[node], nodes):
            swapped, had[node] = swapped + 1, []
    assert swapped <= 5 * CHANCE * played


def test_old_failures_do_not_count() -> None:
    assert kept(strikes(1, 2), MEMORY_S + 1.5) == strikes(2)


# In a run ----------------------------------------------------------------------------------------------


def running(told: Told, nodes: int, spares: int = 2, **settings: Any) -> Told:
    told.fleet_opened(nodes, spares, max_no_progress=0, max_restarts=1000, **settings)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    return told


def fails(told: Told, node: int, error: ev.ErrorRecord | None, step: int, after_s: float = 600.0) -> ac.Incident:
    """A rank at a node's place falls at a step; what follows is started."""
    told.step(step, told.now_s + after_s)
    told.crashed(1 if error else -11, error, rank=2 * node)
    told_last = list(told.incidents.values())[-1]
    if told.phase is Phase.CHOOSING:
        told.chosen()
        told.fleet_started(told.now_s + 0.5)
    return told_last


def out(told: Told) -> list[str]:
    assert told.state.fleet is not None
    return [m.node for m in told.state.fleet.members.values() if m.standing is Standing.OUT]


def test_a_device_that_fails_silently_is_swapped_once_chance_is_excluded(told: Told) -> None:
    """Its errors look like the script's. Other nodes have none."""
    running(told, 40)
    for count, step in enumerate((30, 55, 90), 1):
        last = fails(told, 7, LAUNCH, step)
        assert last.cause == "exception" and out(told) == (["n7"] if count == 3 else [])
    assert last.action == "isolate_node"
    assert told.state.fleet is not None
    assert told.state.fleet.members["n7"].why.endswith("exception, 3 times without a cause found")


def test_a_scripts_own_error_that_meets_one_node_after_the_other_evicts_nobody(told: Told) -> None:
    running(told, 4)
    chance = random.Random(1)
    for number in range(60):
        fails(told, chance.randrange(4), ILLEGAL, 30 + 10 * number)
    assert out(told) == []


def test_a_scripts_own_error_that_comes_back_at_its_step_evicts_nobody(told: Told) -> None:
    """The same batch on the same rank: told at its step, or, as kernels run behind, one later."""
    running(told, 40, spares=9)
    for number in range(9):
        fails(told, 7, ILLEGAL, 50 + number % 2)
    assert out(told) == [] and told.phase is Phase.RUNNING
    assert fails(told, 7, ILLEGAL, 50).action == "give_up" and out(told) == []


def test_errors_on_several_nodes_at_once_evict_nobody(told: Told) -> None:
    running(told, 40)
    for step in (30, 55, 90, 120):
        told.step(step, told.now_s + 60.0)
        for rank in (14, 20):
            raised = ev.UncaughtExceptionReported(attempt=told.attempt, global_rank=rank, error=LAUNCH)
            told.tell(raised)
            told.exits(rank, 1)
        told.tick()
        told.read(told.now_s + 0.1)
        told.stopped(told.now_s + 1.0)
        told.chosen()
        told.fleet_started(told.now_s + 0.5)
    assert out(told) == []


def test_two_failures_days_apart_with_others_between_are_chance(told: Told) -> None:
    running(told, 40)
    for number, node in enumerate((7, 3, 9, 7, 11, 7)):
        fails(told, node, SEGFAULT, 30 + 10 * number, after_s=DAY_S)
    assert out(told) == []


def test_two_in_a_row_count_for_a_week(told: Told) -> None:
    running(told, 4)
    fails(told, 1, SEGFAULT, 30)
    fails(told, 1, SEGFAULT, 60, after_s=MEMORY_S + DAY_S)
    assert out(told) == []
    fails(told, 1, SEGFAULT, 90, after_s=DAY_S)
    assert out(told) == ["n1"]


def test_a_requeue_forgets_no_doubt(told: Told) -> None:
    running(told, 4)
    fails(told, 1, SEGFAULT, 30)
    plan = ev.FleetPlan(least=4, most=4, spares=2)
    told.tell(ev.RunContinued(settings=ev.Settings(), node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan))
    told.chosen()
    for slot in range(6):
        told.joined(f"n{slot}", slot)
    told.fleet_started(told.now_s + 1.0)
    fails(told, 1, SEGFAULT, 60)
    assert out(told) == ["n1"]
