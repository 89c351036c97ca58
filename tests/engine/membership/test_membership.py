"""Several nodes: who trains, who is lost, who is left out, and who never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.membership.membership import DROPPED_S
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing, first_ranks, place
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import CLOSED, drained, incident, starts, stopped_and_chosen


def reason(actions: list[ac.Action]) -> str:
    [done] = [action for action in actions if isinstance(action, ac.FinishRun)]
    return done.summary.reason


def running(told: Told, most: int = 2, spares: int = 1, **more: Any) -> Told:
    told.fleet_opened(most, spares, **more)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    return told


# Forming -----------------------------------------------------------------------------------------------


def test_a_job_starts_when_its_first_nodes_are_there(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=1))
    assert told.phase is Phase.GATHERING
    assert not starts(told.joined("n1", 1))
    [start] = starts(told.joined("n0", 0))
    assert start.nodes == ["n0", "n1"]
    assert told.state.world_size == 4


def test_a_quick_spare_waits_for_a_slow_node(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=1))
    assert not starts(told.joined("n0", 0) + told.joined("n2", 2))
    [start] = starts(told.joined("n1", 1))
    assert start.nodes == ["n0", "n1"]


def test_a_node_that_never_comes_is_replaced_by_a_spare(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=1), last_call_s=30.0)
    told.joined("n0", 0)
    told.joined("n2", 2)
    [start] = starts(told.tick() + told.tick())
    assert start.nodes == ["n0", "n2"]
    assert told.now_s == pytest.approx(30.1, abs=0.1)


def test_fewer_nodes_will_do_where_the_user_says_so(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=1, most=3), last_call_s=30.0)
    told.joined("n0", 0)
    told.joined("n1", 1)
    [start] = starts(told.tick() + told.tick())
    assert start.nodes == ["n0", "n1"]


def test_for_whom_a_run_waits_is_said_soon_and_then_rarely(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=3, spares=1), join_timeout_s=1000.0)
    told.joined("n0", 0)
    said: list[tuple[int, str]] = []
    while told.phase is Phase.GATHERING:
        actions = told.tick()
        said += [(round(told.now_s), one.text) for one in actions if isinstance(one, ac.Say)]
    assert said[0] == (
        10,
        "waiting for nodes: 1 of 2 to 3 are there (n0); 990 s at most. They find this one by the folder of runs, "
        "which all must share, or by --guard-join",
    )
    assert [at_s for at_s, text in said if "are there" in text] == [10, 60, 360, 660, 960]


def test_too_few_nodes_end_the_run_unfinished(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2), join_timeout_s=60.0)
    told.joined("n0", 0)
    while told.phase is Phase.GATHERING:
        actions = told.tick()
    [finish] = [action for action in actions if isinstance(action, ac.FinishRun)]
    assert finish.summary.outcome == "interrupted" and finish.exit_code == 1
    assert "1 of 2 nodes" in finish.summary.reason
    assert told.now_s == pytest.approx(60.1, abs=0.1)


def test_too_few_nodes_have_the_job_requeued_without_those_that_are_gone(told: Told) -> None:
    running(told, spares=0, is_named=True)
    told.tell(ev.SchedulerStatusChanged(end_s=0.0, may_requeue=True))
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tick()
    stopped_and_chosen(told)
    requeue = [action for action in told.tick() if isinstance(action, ac.Requeue)]
    assert [action.exclude for action in requeue] == [["n1"]]
    assert requeue[0].summary.outcome == "interrupted" and "1 of 2 nodes" in requeue[0].summary.reason
    assert not starts(told.joined("n1", 1)), "too late: the scheduler is about to end the job"
    [finish] = [a for a in told.tell(ev.Requeued(is_done=True)) if isinstance(a, ac.FinishRun)]
    assert finish.summary.outcome == "interrupted"


def test_ranks_are_numbered_through_the_nodes_of_any_size() -> None:
    fleet = Fleet(plan=ev.FleetPlan(least=3, most=3))
    for order, (node, ranks) in enumerate([("a", 8), ("b", 4), ("c", 8)]):
        fleet.members[node] = Member(node=node, order=order, ranks=ranks)
    assert first_ranks(fleet, ["a", "b", "c"]) == [0, 8, 12, 20]


# Drained by somebody -----------------------------------------------------------------------------------


def test_a_drained_node_trains_until_the_next_restart(told: Told) -> None:
    running(told)
    assert drained(told, n1="disk; root", elsewhere="x; root") == [
        "n1 is drained (disk; root): training there goes on, until the next restart: a spare is there"
    ]
    assert drained(told, n1="disk; root") == [] == told.tell(ev.SchedulerStatusChanged(end_s=told.now_s + 900.0))
    told.crashed(-9)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n2"]
    assert drained(told) == ["n1 is drained no more"]


def test_a_drained_spare_is_taken_last(told: Told) -> None:
    running(told, spares=2)
    assert drained(told, n2="disk; root") == [
        "n2 is drained (disk; root): it takes a place only where no other node can"
    ]
    told.tell(ev.NodeLeft(node="n1", why="it was killed"), 4.0)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n3"]


def test_a_drained_node_is_better_than_none(told: Told) -> None:
    running(told, spares=0)
    assert drained(told, n0="a; root", n1="b; root") == [
        "n0 is drained (a; root): training there goes on",
        "n1 is drained (b; root): training there goes on",
    ]
    told.crashed(-9)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n1"]


# Lost --------------------------------------------------------------------------------------------------


def test_a_silent_node_is_lost_after_its_time_and_a_spare_takes_its_place(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n0", since_s=3.0), 8.0)
    actions = told.tick()
    assert told.now_s == pytest.approx(3.0 + 25.0, abs=0.1)
    assert incident(told).cause == "node_lost" and incident(told).kind == "node"
    assert [c.rank for c in incident(told).culprits] == [0, 1]
    assert "StopAttempt" in kinds(actions) and "Isolate" in kinds(actions)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n2", "n1"], "the spare takes the place of the lost one: no other rank changes its node"
    assert incident(told).action == "isolate_node"


def test_a_job_that_advances_has_all_its_nodes(told: Told) -> None:
    """Contact alone is lost: nobody is stopped for that."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    for at_s in range(9, 120):
        told.step(at_s, float(at_s), range(2))
        due_s = told.engine.next_deadline_s()
        if due_s is not None and due_s <= at_s:
            told.tick()
    assert told.phase is Phase.RUNNING and not told.state.incidents
    told.tell(ev.NodeContactRestored(node="n1"), 121.0)
    assert told.state.fleet is not None and not told.state.fleet.silent


def test_contact_that_alone_is_lost_is_said_once_and_again_when_it_is_back(told: Told) -> None:
    running(told)
    for times, lost_s in ((1, 26), (2, 51)):  # the first has shown how long it may last
        since_s = told.now_s
        told.tell(ev.NodeSuspected(node="n1", since_s=since_s), since_s + 5.0)
        said = []
        for number in range(6, 60):
            told.step(10 + int(told.now_s), since_s + number, range(2))
            due_s = told.engine.next_deadline_s()
            if due_s is not None and due_s <= told.now_s + 1e-3:
                said += [(number, action.text) for action in told.tick() if isinstance(action, ac.Say)]
        assert said == [(lost_s, f"contact with n1 lost for {lost_s} s: its training goes on")]
        assert told.state.fleet is not None
        member = told.state.fleet.members["n1"]
        assert (member.contact_lost, member.why) == (times, "contact is lost; its training goes on")
        back = told.tell(ev.NodeContactRestored(node="n1"), since_s + 60.0)
        assert [action.text for action in back if isinstance(action, ac.Say)] == ["contact with n1 is back, after 60 s"]
        assert (member.standing, member.why) == (Standing.READY, "")


def test_a_node_that_is_lost_after_its_contact_is_told_as_ever(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    for number in range(8, 30):
        told.step(number + 3, float(number), range(2))
    told.tick()
    assert told.state.fleet is not None and told.state.fleet.members["n1"].is_missed
    told.tick()
    assert incident(told).cause == "node_lost"
    assert told.state.fleet.members["n1"].why.startswith("nothing has been heard of it for")
    back = told.joined("n1", 1)
    assert [action.text for action in back if isinstance(action, ac.Say)] == [
        "n1 is back: it waits for the next attempt"
    ]


def test_a_guardrun_that_was_stopped_is_missing_in_the_attempt_that_it_was_to_start(told: Told) -> None:
    running(told, spares=2)
    told.crashed(1, rank=0)
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n1"]
    told.tell(ev.NodeLeft(node="n1", why="its guardrun hangs in the kernel, and did not obey", is_unfit=True))
    there = [ev.Rank(global_rank=n, local_rank=n, pid=200 + n, node="n0") for n in range(2)]
    actions = told.tell(ev.AttemptStarted(attempt=1, ranks=there))
    assert incident(told).cause == "node_lost" and "hangs in the kernel" in incident(told).summary
    assert [action.node for action in actions if isinstance(action, ac.Isolate)] == ["n1"]
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n2"]


@pytest.mark.parametrize("is_tied", [True, False])
def test_what_others_do_says_nothing_of_a_node_that_has_no_part_in_it(told: Told, is_tied: bool) -> None:
    """It has ended its ranks by then: nothing tells it that the next attempt has not begun."""
    told.fleet_opened(2, 1)
    told.fleet_started(1.0)
    told.step(10, 2.0, range(2))
    report = ev.RankReport(global_rank=2, progress_s=2.5, progress=9, step=1, joint=7 if is_tied else 0)
    told.tell(ev.NodeReport(node="n1", attempt=0, ranks=[report]), 2.6)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    for at_s in range(9, 40):
        told.step(at_s, float(at_s), range(2))
        while (due_s := told.engine.next_deadline_s()) is not None and due_s <= at_s:
            told.tick()
    assert [i.cause for i in told.state.incidents.values()] == ([] if is_tied else ["node_lost"])


def test_a_job_with_long_steps_advances_too(told: Told) -> None:
    """Between two of its steps nobody has stood still."""
    running(told)
    for number in range(1, 31):
        told.step(10 + number, 2.0 + 20 * number)
    told.tell(ev.NodeSuspected(node="n1", since_s=603.0), 608.0)
    for number in range(31, 36):
        while (due_s := told.engine.next_deadline_s()) is not None and due_s <= 2.0 + 20 * number:
            told.tick()
        told.step(10 + number, 2.0 + 20 * number, range(2))
    assert told.phase is Phase.RUNNING and not told.state.incidents
    told.tick()
    assert incident(told).cause == "node_lost"
    assert told.now_s <= 702.0 + 2 * 20


def test_a_node_that_is_heard_again_in_time_is_not_lost(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tell(ev.NodeContactRestored(node="n1"), 26.0)
    for _ in range(3):
        told.tick()
    assert "node_lost" not in {i.cause for i in told.state.incidents.values()}


@pytest.mark.parametrize("frozen_s", [7.0, 12.0, 24.0])
def test_a_node_that_was_frozen_closes_its_connection_as_it_wakes_up_and_is_back(told: Told, frozen_s: float) -> None:
    """The patience after a closure counts from the closure: from the last word heard it would be over at once."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0, is_dropped=True), 3.0 + frozen_s)
    while (due_s := told.engine.next_deadline_s()) is not None and due_s < 7.5 + frozen_s:
        assert "StopAttempt" not in kinds(told.tick())
    told.tell(ev.NodeJoined(node="n1", slot=1, ranks=2, attempt=0), 7.5 + frozen_s)
    told.step(20, 8.0 + frozen_s)
    for _ in range(3):
        told.tick()
    assert not told.state.incidents and told.state.fleet is not None
    assert told.state.fleet.members["n1"].standing is Standing.READY


def test_a_node_whose_connection_was_closed_and_that_is_not_back_is_lost_soon(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0, is_dropped=True), 4.0)
    told.tick()
    assert incident(told).cause == "node_lost"
    assert told.now_s == pytest.approx(4.0 + 5.0, abs=0.1)


def test_the_time_after_which_a_node_is_lost_is_measured(told: Told) -> None:
    """A network that takes 24 s to fail over is given more than 25 s the next time, but not for ever."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.step(20, 26.5)
    told.tell(ev.NodeContactRestored(node="n1"), 27.0)
    told.step(21, 27.5)
    told.tell(ev.NodeSuspected(node="n0", since_s=30.0), 35.0)
    told.tick()
    assert incident(told).cause == "node_lost" and told.now_s == pytest.approx(30.0 + 1.5 * 24.0, abs=0.1)


def test_a_supervisor_that_was_started_anew_has_not_heard_anybody_yet(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0, is_dropped=True), 3.1)
    told.tell(ev.SupervisorRestarted(), 20.0)
    assert not told.tell(ev.Ticked(), 20.5)
    told.tell(ev.NodeJoined(node="n1", slot=1, ranks=2, attempt=0), 21.0)
    told.tell(ev.Ticked(), 60.0)
    assert "node_lost" not in [incident.cause for incident in told.state.incidents.values()]
    told.tell(ev.NodeSuspected(node="n1", since_s=61.0), 66.0)
    told.tell(ev.Ticked(), 61.0 + told.state.settings.lost_s)
    assert incident(told).cause == "node_lost"


def test_a_node_whose_guardrun_was_ended_may_come_back(told: Told) -> None:
    running(told, spares=0)
    actions = told.tell(ev.NodeLeft(node="n1", why="its guardrun was killed"), 5.0)
    assert not [action for action in actions if isinstance(action, ac.Isolate)]
    assert incident(told).summary == "n1 and its ranks 2-3 are gone: its guardrun was killed."
    assert not starts(stopped_and_chosen(told))
    assert told.phase is Phase.GATHERING
    [start] = starts(told.joined("n1", 1))
    assert start.nodes == ["n0", "n1"]


def test_a_lost_node_that_is_back_before_the_next_attempt_takes_part_but_not_twice(told: Told) -> None:
    running(told, spares=0)
    for attempt, phase in ((0, Phase.STARTING), (1, Phase.GATHERING)):
        since_s = told.now_s
        told.tell(ev.NodeSuspected(node="n1", since_s=since_s), since_s + 5.0)
        told.tell(ev.Ticked(), since_s + 40.0)
        assert incident(told).cause == "node_lost"
        told.joined("n1", 1)
        started = starts(stopped_and_chosen(told))
        assert told.phase is phase
        if phase is Phase.STARTING:
            assert [start.nodes for start in started] == [["n0", "n1"]]
            told.fleet_started(told.now_s + 1.0)
            told.step(20 + attempt, told.now_s + 1.0)


def test_a_node_that_cannot_start_its_ranks_is_left_out(told: Told) -> None:
    told.fleet_opened(2, 1)
    told.fleet_started(1.0)
    actions = told.tell(ev.NodeLeft(node="n1", why="it could not start its ranks: no memory", is_unfit=True), 1.0)
    assert [action.node for action in actions if isinstance(action, ac.Isolate)] == ["n1"]
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n2"]
    assert told.state.fleet is not None
    assert told.state.fleet.members["n1"].standing is Standing.OUT


def test_no_hang_is_told_while_a_node_is_silent(told: Told) -> None:
    """What would be seen of its ranks is that they were not seen."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    actions = told.tick()
    assert "TakeLook" not in kinds(actions)
    assert incident(told).cause == "node_lost"


def test_the_killed_node_behind_its_peers_errors_is_named(told: Told) -> None:
    """Its peers raise at once; the connection is closed, and nobody comes back."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=2.9, is_dropped=True), 3.0)
    for rank in (0, 1):
        told.tell(ev.RankRaised(attempt=0, global_rank=rank, error=CLOSED), 3.1)
        told.exits(rank, 1, 3.2)
    for _ in range(12):
        actions = told.tick()
        if "ReadExits" in kinds(actions):
            told.read(told.now_s + 0.05)
        if told.state.incidents:
            break
    assert incident(told).cause == "node_lost"
    assert told.now_s < 3.0 + DROPPED_S + 1.0
    assert {c.node for c in incident(told).culprits} == {"n1"}
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n2"]


@pytest.mark.parametrize("is_told_first", [True, False])
def test_an_exit_on_a_node_whose_clock_is_ahead_is_its_own(told: Told, is_told_first: bool) -> None:
    """Its rank ends with 3; the head's loses it, and may be told of sooner."""
    running(told)
    lost = ev.ErrorRecord(error="RuntimeError", message="Connection closed by peer", traceback="torch/distributed/x.py")
    fell = ev.RankExited(attempt=0, global_rank=2, pid=1, exitcode=3, at_s=10.012)
    if is_told_first:
        told.tell(fell, 10.0)
    told.tell(ev.RankRaised(attempt=0, global_rank=0, error=lost), 10.001)
    told.tell(ev.RankExited(attempt=0, global_rank=0, pid=2, exitcode=1, at_s=10.002), 10.003)
    if not is_told_first:
        told.tell(fell, 10.01)
    told.stopped(11.0)
    told.read(11.1)
    assert (incident(told).cause, [c.rank for c in incident(told).culprits]) == ("exit_code", [2]), incident(
        told
    ).summary


def test_a_spare_that_is_lost_is_only_said(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n2", since_s=3.0), 8.0)
    told.step(20, 27.9)
    actions = told.tick()
    assert not told.state.incidents and told.phase is Phase.RUNNING
    assert any(isinstance(action, ac.Say) and "n2 is lost" in action.text for action in actions)


@pytest.mark.parametrize("how", ["closed", "left"])
def test_a_spare_that_is_gone_when_it_is_needed_is_replaced_at_once(told: Told, how: str) -> None:
    """It is lost while the attempt starts, which then starts without it: nobody waits for a hang to be seen."""
    running(told, spares=2)
    told.crashed(1, ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: GPU is lost"), rank=2)
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n2"]
    if how == "closed":
        told.tell(ev.NodeSuspected(node="n2", since_s=told.now_s, is_dropped=True))
        told.tick()
    else:
        told.tell(ev.NodeLeft(node="n2"))
    there = [ev.Rank(global_rank=n, local_rank=n, pid=200 + n, node="n0") for n in range(2)]
    actions = told.tell(ev.AttemptStarted(attempt=1, ranks=there))
    assert incident(told).cause == "node_lost" and "n2" in incident(told).summary
    assert "StopAttempt" in kinds(actions)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n3"]


def test_a_lost_node_that_comes_back_is_the_next_spare(told: Told) -> None:
    test_a_silent_node_is_lost_after_its_time_and_a_spare_takes_its_place(told)
    told.fleet_started(told.now_s + 0.5)
    told.step(20, told.now_s + 2.0, range(4), attempt=1)
    told.joined("n0", 0)
    told.tell(ev.NodeSuspected(node="n1", since_s=told.now_s), told.now_s + 5.0)
    told.tick()
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n2", "n0"]


def test_without_a_spare_the_job_waits_for_a_node(told: Told) -> None:
    running(told, spares=0)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tick()
    assert not starts(stopped_and_chosen(told))
    assert told.phase is Phase.GATHERING
    [start] = starts(told.joined("n1", 1))
    assert start.nodes == ["n0", "n1"]


def test_a_job_shrinks_and_grows_where_the_user_allows_it(told: Told) -> None:
    running(told, most=3, spares=0, least=2)
    told.tell(ev.NodeSuspected(node="n1", since_s=3.0), 8.0)
    told.tick()
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n2"] and told.state.world_size == 4
    told.fleet_started(told.now_s + 0.5)
    told.step(30, told.now_s + 2.0, range(4), attempt=1)
    told.joined("n1", 1)
    assert told.phase is Phase.RUNNING, "a node that is back disturbs nobody"
    told.crashed()
    [start] = starts(told.chosen())
    assert sorted(start.nodes) == ["n0", "n1", "n2"]


def test_a_supervisor_that_died_while_it_isolated_a_node_does_it_again(told: Told) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n0", since_s=3.0), 8.0)
    [first] = [action for action in told.tick() if isinstance(action, ac.Isolate)]
    [again] = [action for action in told.tell(ev.SupervisorRestarted()) if isinstance(action, ac.Isolate)]
    assert again == first and again.node == "n0" and again.cause == "node_lost"


# To blame ----------------------------------------------------------------------------------------------


def test_what_the_script_does_blames_no_node(told: Told) -> None:
    running(told)
    error = ev.ErrorRecord(error="ValueError", message="bad sample", at_s=2.0)
    told.crashed(1, error)
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n1"] and incident(told).action == "restart"


def test_a_failure_without_a_cause_swaps_the_node_the_second_time(told: Told) -> None:
    running(told)
    told.crashed(-11, rank=2)
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n1"]
    told.fleet_started(told.now_s + 0.5)
    told.step(30, told.now_s + 2.0, range(4), attempt=1)
    told.crashed(-11, rank=3)
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n2"] and incident(told).action == "isolate_node"
    assert told.state.fleet is not None and told.state.fleet.members["n1"].standing is Standing.OUT


def test_the_same_ranks_failing_on_another_node_evict_no_more(told: Told) -> None:
    running(told, spares=3)
    for attempt in range(6):
        told.crashed(-11, rank=2)
        assert starts(told.chosen())
        told.fleet_started(told.now_s + 0.5)
        told.step(20 + 10 * attempt, told.now_s + 2.0, range(4), attempt=attempt + 1)
    assert told.state.fleet is not None
    assert [m.node for m in told.state.fleet.members.values() if m.standing is Standing.OUT] == ["n1"]


def test_nodes_that_fail_one_after_the_other_are_no_lack_of_progress(told: Told) -> None:
    """Each is replaced; the script has nothing to do with it, and the run goes on while there are spares."""
    running(told, spares=5, max_no_progress=3)
    lost = ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: GPU is lost")
    for attempt in range(1, 6):
        told.crashed(1, lost, rank=2)
        assert starts(told.chosen())
        told.fleet_started(told.now_s + 0.5)
        told.step(5, told.now_s + 2.0, range(4), attempt=attempt)
    for attempt in range(6, 8):
        told.crashed(-11, rank=1)
        assert starts(told.chosen())
        told.fleet_started(told.now_s + 0.5)
        told.step(5, told.now_s + 2.0, range(4), attempt=attempt)
    told.crashed(-11, rank=0)
    assert told.phase is Phase.ENDED and "got no further" in told.state.give_up_reason


def test_culprits_on_two_nodes_evict_none(told: Told) -> None:
    running(told)
    for rank in (1, 2):
        told.exits(rank, -9, 3.0)
    told.tick()
    told.read(told.now_s + 0.1)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n1"]


def test_the_spare_is_not_blamed_for_the_device_of_the_node_before_it(told: Told) -> None:
    """The sensors' word comes when the node has been replaced already."""
    running(told)
    lost = ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: GPU is lost")
    told.crashed(1, lost, rank=2)
    finding = Finding(
        id="gpu_xid/gpu:GPU-1",
        cause="gpu_xid",
        subject="gpu:GPU-1",
        since_s=2.0,
        told_s=2.0,
        summary="Xid 79",
        response=Response.ISOLATE,
    )
    told.tell(
        ev.NodeFindingsReported(node="n1", findings=[finding], devices={2: ev.Device(subject="gpu:GPU-1", index=0)})
    )
    [start] = starts(told.chosen())
    assert start.nodes == ["n0", "n2"]
    told.fleet_started(told.now_s + 0.5)
    told.step(30, told.now_s + 2.0, range(4), attempt=1)
    assert {c.node for i in told.state.incidents.values() for c in i.culprits} == {"n1"}


# Going on ----------------------------------------------------------------------------------------------


def test_a_requeued_run_keeps_who_is_out(told: Told) -> None:
    test_a_failure_without_a_cause_swaps_the_node_the_second_time(told)
    plan = ev.FleetPlan(least=2, most=2, spares=1)
    told.tell(ev.RunContinued(settings=ev.Settings(), node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan))
    told.chosen()
    assert not starts(told.joined("n0", 0) + told.joined("n1", 1))
    assert starts(told.joined("n2", 2))[0].nodes == ["n0", "n2"]


def test_a_signal_on_one_node_ends_the_job_on_all(told: Told) -> None:
    running(told)
    actions = told.tell(ev.StopRequested(signum=15, node="n1"))
    assert kinds(actions) == ["StopAttempt"] and told.phase is Phase.ENDING
    assert isinstance(actions[0], ac.Say)
    assert actions[0].text == "SIGTERM to guardrun on n1: ending the job on all nodes"
    again = told.tell(ev.StopRequested(signum=15, node="n0"))
    assert not again, "a signal that all nodes get is told once"
    assert reason(told.stopped(told.now_s + 1.0)) == "SIGTERM to guardrun on n1"


def test_a_signal_of_a_journal_of_before_is_replayed_as_it_was(told: Told) -> None:
    running(told)
    assert kinds(told.tell(ev.StopRequested(signum=15))) == ["StopAttempt"]
    assert reason(told.stopped(told.now_s + 1.0)) == "signal 15"


def test_a_spare_that_is_told_to_end_leaves_and_the_job_goes_on(told: Told) -> None:
    running(told)
    [said] = told.tell(ev.StopRequested(signum=15, node="n2"))
    assert isinstance(said, ac.Say) and said.text == "n2 leaves: SIGTERM to its guardrun; it was a spare"
    assert told.phase is Phase.RUNNING and told.state.fleet is not None
    assert told.state.fleet.members["n2"].standing is Standing.LEFT
    # It is none for the next attempt; started again, it is.
    told.tell(ev.NodeLeft(node="n1", why="its guardrun was killed"), 5.0)
    assert not starts(stopped_and_chosen(told))
    [start] = starts(told.joined("n2", 2))
    assert start.nodes == ["n0", "n2"]


def test_who_is_left_out_stays_so_when_its_guardrun_ends(told: Told) -> None:
    test_a_failure_without_a_cause_swaps_the_node_the_second_time(told)
    told.fleet_started(told.now_s + 0.5)
    [said] = told.tell(ev.StopRequested(signum=2, node="n1"))
    assert isinstance(said, ac.Say) and said.text == "n1 leaves: SIGINT to its guardrun; it was left out already"
    assert told.state.fleet is not None and told.state.fleet.members["n1"].standing is Standing.OUT


@pytest.mark.parametrize(("node", "leaves"), [("n0", False), ("n1", False), ("n2", True)])
def test_while_a_job_forms_those_beyond_the_first_are_spares(told: Told, node: str, leaves: bool) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=2))
    told.joined("n0", 0)
    told.joined(node, int(node[1]))
    told.tell(ev.StopRequested(signum=15, node=node))
    assert told.phase is (Phase.GATHERING if leaves else Phase.ENDED)


def test_the_head_never_leaves_for_it_leads(told: Told) -> None:
    """Its own guardrun had been stopped, so that others train; going on, it is a spare as well as the head."""
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=1))
    for slot, node in enumerate(["node-a", "n1", "n2"]):
        told.joined(node, slot)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    told.tell(ev.NodeLeft(node="node-a", why="its guardrun is stopped"), 5.0)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n2", "n1"]
    told.fleet_started(told.now_s + 0.5)
    told.joined("node-a", 0)
    actions = told.tell(ev.StopRequested(signum=15, node="node-a"))
    assert kinds(actions) == ["StopAttempt"] and told.phase is Phase.ENDING


STANDINGS = st.sampled_from([Standing.READY, Standing.READY, Standing.READY, *Standing])


@given(st.lists(STANDINGS, min_size=1, max_size=8), st.integers(1, 5), st.integers(0, 3), st.data())
def test_placing_keeps_its_promises(standings: list[Standing], most: int, spares: int, data: st.DataObject) -> None:
    """Only ready nodes, each once, no more than wanted, none fewer than allowed, and nobody moves without need."""
    least = data.draw(st.integers(1, most))
    fleet = Fleet(plan=ev.FleetPlan(least=least, most=most, spares=spares))
    for order, standing in enumerate(standings):
        fleet.members[f"n{order}"] = Member(node=f"n{order}", order=order, ranks=2, standing=standing)
    for node in data.draw(st.lists(st.sampled_from(sorted(fleet.members)), unique=True)):
        fleet.members[node].drained = "why"
    before = data.draw(st.lists(st.sampled_from(sorted(fleet.members)), unique=True, max_size=most))
    fleet.placed = before
    placed = place(fleet, data.draw(st.sampled_from([0.0, 100.0])), 30.0)
    ready = {m.node for m in fleet.members.values() if m.standing is Standing.READY}
    assert set(placed) <= ready and len(set(placed)) == len(placed)
    assert not placed or least <= len(placed) <= most
    if len(placed) == len(before):
        for old, new in zip(before, placed, strict=True):
            assert old == new or old not in ready or (fleet.members[old].drained and not fleet.members[new].drained)
    well = [node for node in ready if not fleet.members[node].drained]
    assert not placed or len(set(placed) & set(well)) == min(len(placed), len(well)), "the drained come last"
    assert placed or len(ready) < most or not before or place(fleet, 100.0, 30.0)
