"""A node whose guardrun was refused is not waited for."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from tests.engine.conftest import Told, kinds

WHY = "node n1 is quarantined since noon: gpu_ecc (8 double-bit errors)."


def opened(told: Told, most: int = 2, spares: int = 0, least: int | None = None) -> None:
    """n0 is there; of the others nothing is known."""
    plan = ev.FleetPlan(least=most if least is None else least, most=most, spares=spares)
    told.opened(2, plan, last_call_s=30.0, join_timeout_s=600.0)
    told.joined("n0", 0)


def absent(told: Told, node: str = "n1", *, is_final: bool = True) -> list[ac.Action]:
    event = ev.NodeAbsent(node=node, slot=int(node[1:]), why=WHY, exit_code=69, is_final=is_final)
    return told.tell(event, told.now_s + 1.0)


def finished(actions: list[ac.Action]) -> ac.FinishRun:
    [finish] = [action for action in actions if isinstance(action, ac.FinishRun)]
    return finish


def starts(actions: list[ac.Action]) -> list[str]:
    return [node for action in actions if isinstance(action, ac.StartAttempt) for node in action.nodes]


def test_where_nobody_starts_it_again_too_few_end_at_once(told: Told) -> None:
    opened(told)
    actions = absent(told)
    assert actions[0] == ac.Say(text=f"n1 takes no part: {WHY.rstrip('.')}", level="bad")
    finish = finished(actions)
    assert (finish.exit_code, finish.summary.outcome) == (69, "interrupted")
    assert finish.summary.reason == f"too few nodes: 1 of 2 nodes; not with them: n1 ({WHY.rstrip('.')})"


def test_where_a_person_may_it_is_said_and_waited_for(told: Told) -> None:
    opened(told)
    assert kinds(absent(told, is_final=False)) == []
    assert told.phase is Phase.GATHERING
    actions = told.joined("n1", 1)
    assert starts(actions) == ["n0", "n1"]
    assert told.state.fleet is not None and told.state.fleet.members["n1"].why == ""


def test_a_spare_does_not_wait_for_it(told: Told) -> None:
    """Else it would until last_call_s, as for a node that is late."""
    opened(told, spares=1)
    told.joined("n2", 2)
    assert told.phase is Phase.GATHERING
    assert starts(absent(told)) == ["n0", "n2"]


def test_while_others_may_come_they_are_waited_for(told: Told) -> None:
    opened(told, spares=1)
    assert kinds(absent(told)) == []
    assert starts(told.joined("n2", 2)) == ["n0", "n2"]


def test_a_job_that_may_shrink_starts_with_fewer_at_once(told: Told) -> None:
    opened(told, most=3, least=2)
    told.joined("n2", 2)
    assert starts(absent(told)) == ["n0", "n2"]


def test_one_after_the_other_until_too_few_are_left(told: Told) -> None:
    opened(told, most=2, spares=1)
    assert "FinishRun" not in kinds(absent(told))
    assert finished(absent(told, "n2")).exit_code == 69


@pytest.mark.parametrize("node", ["n0", "n1"])
def test_of_a_node_that_trains_it_is_another_guardruns(told: Told, node: str) -> None:
    told.fleet_opened(2)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    assert absent(told, node) == []
    assert told.state.fleet is not None and told.state.fleet.members[node].standing is Standing.READY


def test_later_it_is_no_reason_to_end(told: Told) -> None:
    """Its guardrun was started again after the node had been lost; a requeue, or others, may still help."""
    told.fleet_opened(2)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    told.tell(ev.NodeLeft(node="n1", why="told to end"), 3.0)
    told.stopped(4.0)
    told.chosen()
    assert told.phase is Phase.GATHERING
    assert kinds(absent(told)) == []
    assert told.phase is Phase.GATHERING
