"""Nodes that refuse to start, and nodes that were left out and that a person has released."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Member, Standing
from tests.engine.conftest import Told, kinds
from tests.engine.membership import checks
from tests.engine.recovery import missing_module

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


def started(actions: list[ac.Action]) -> list[str]:
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
    assert started(actions) == ["n0", "n1"]
    assert told.state.fleet is not None and told.state.fleet.members["n1"].why == ""


def test_a_spare_does_not_wait_for_it(told: Told) -> None:
    """Else it would until last_call_s, as for a node that is late."""
    opened(told, spares=1)
    told.joined("n2", 2)
    assert told.phase is Phase.GATHERING
    assert started(absent(told)) == ["n0", "n2"]


def test_while_others_may_come_they_are_waited_for(told: Told) -> None:
    opened(told, spares=1)
    assert kinds(absent(told)) == []
    assert started(told.joined("n2", 2)) == ["n0", "n2"]


def test_a_job_that_may_shrink_starts_with_fewer_at_once(told: Told) -> None:
    opened(told, most=3, least=2)
    told.joined("n2", 2)
    assert started(absent(told)) == ["n0", "n2"]


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


# Released ------------------------------------------------------------------------------------------------


def member(told: Told, node: str = "n1") -> Member:
    assert told.state.fleet is not None
    return told.state.fleet.members[node]


def placed(told: Told) -> list[str]:
    assert told.state.fleet is not None
    return told.state.fleet.placed


def left_out(told: Told, spares: int = 1) -> None:
    """n0 and n2 train; n1 has been left out."""
    missing_module.started(told, spares)
    missing_module.fails(told, 2, {0: missing_module.WAITS})
    missing_module.again(told)
    told.step(10, told.now_s + 1.0)
    assert member(told).standing is Standing.OUT and placed(told) == ["n0", "n2"]


def release(told: Told, at_s: float | None = None, reason: str = "", node: str = "n1") -> list[ac.Action]:
    now_s = told.now_s + 1.0
    return told.tell(ev.NodeReleased(node=node, at_s=now_s if at_s is None else at_s, who="ada", reason=reason), now_s)


def loses(told: Told, node: str) -> None:
    """A node that trains is lost, and nothing of the attempt is left."""
    told.tell(ev.NodeLeft(node=node, why="told to end"), told.now_s + 1.0)
    told.stopped(told.now_s + 1.0)
    told.chosen()


@pytest.mark.parametrize("reason", ["", "apex installed"])
def test_it_is_the_next_spare(told: Told, reason: str) -> None:
    left_out(told)
    actions = release(told, reason=reason)
    [said] = [action for action in actions if isinstance(action, ac.Say)]
    assert said.text == f"n1 was released by ada{f' ({reason})' if reason else ''}: it waits for the next attempt"
    assert (member(told).standing, member(told).why) == (Standing.READY, "")
    assert told.phase is Phase.RUNNING and placed(told) == ["n0", "n2"], "nobody is disturbed for it"
    loses(told, "n2")
    assert placed(told) == ["n0", "n1"]


def test_it_is_said_once(told: Told) -> None:
    left_out(told)
    release(told)
    assert release(told) == []


def test_a_release_from_before_it_was_left_out_is_none(told: Told) -> None:
    left_out(told)
    assert release(told, at_s=member(told).since_s - 0.1) == []
    assert member(told).standing is Standing.OUT


@pytest.mark.parametrize("node", ["n0", "n9"])
def test_who_is_not_left_out_stays_as_it_is(told: Told, node: str) -> None:
    left_out(told)
    assert release(told, node=node) == []
    assert member(told, "n0").is_placed


def test_a_job_that_waits_for_nodes_goes_on_with_it_at_once(told: Told) -> None:
    left_out(told)
    loses(told, "n2")
    assert told.phase is Phase.GATHERING
    actions = release(told)
    assert told.phase is Phase.STARTING and "StartAttempt" in kinds(actions)
    assert placed(told) == ["n0", "n1"]


def unfit(told: Told) -> None:
    """The pre-flight has found n1 faulty; n0 and n2 train."""
    checks.opened(told)
    checks.checked(told, 1, {"n1": checks.DEAF})
    told.fleet_started(told.now_s + 1.0)
    told.step(10, told.now_s + 1.0)
    assert member(told).standing is Standing.OUT and told.state.nodes.isolated == {"n1": "001"}


def test_what_was_held_against_it_is_over(told: Told) -> None:
    unfit(told)
    release(told)
    assert told.state.nodes.isolated == {} and not member(told).is_unfit
    told.crashed(rank=0)
    assert member(told).standing is Standing.READY, "the next verdict does not leave it out again"


@pytest.mark.parametrize("is_done", [False, True])
def test_what_is_still_to_be_done_to_keep_it_out_is_withdrawn(told: Told, is_done: bool) -> None:
    """Slurm has not answered yet: the node would be drained after its release."""
    unfit(told)
    if is_done:
        told.tell(ev.IsolationSettled(node="n1", incident="001"))
    withdrawn = ac.WithdrawIsolation(node="n1", incident="001")
    assert (withdrawn in release(told)) is not is_done
    assert told.state.nodes.unsettled == {}


def test_after_a_pre_flight_it_is_tried_once_more(told: Told) -> None:
    unfit(told)
    release(told)
    told.tell(ev.NodeLeft(node="n2", why="told to end"), told.now_s + 1.0)
    told.stopped(told.now_s + 1.0)
    told.chosen()
    assert told.phase is Phase.CHECKING, "it may still be deaf"
    actions = checks.checked(told, 2, None)
    assert [action.nodes for action in actions if isinstance(action, ac.StartAttempt)] == [["n0", "n1"]]


def test_it_goes_for_a_job_that_is_continued(told: Told) -> None:
    """The node was left out, the job requeued, the node repaired and released, and given to the job again."""
    left_out(told)
    told.tell(ev.StopRequested(signum=15), told.now_s + 1.0)
    plan = ev.FleetPlan(least=2, most=2, spares=1)
    told.tell(
        ev.RunContinued(settings=told.state.settings, node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan),
        told.now_s + 9.0,
    )
    told.chosen()
    for number in range(2):
        told.joined(f"n{number}", number)
    assert member(told).standing is Standing.OUT and told.phase is Phase.GATHERING
    release(told)
    assert told.phase is Phase.STARTING and placed(told) == ["n0", "n1"]
