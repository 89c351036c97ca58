"""Between two attempts: whom a job waits for, with whom it starts, and what is said of it."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing, first_ranks
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import drained, running, starts, stopped_and_chosen


def reason(actions: list[ac.Action]) -> str:
    [done] = [action for action in actions if isinstance(action, ac.FinishRun)]
    return done.summary.reason


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


def test_time_in_which_the_head_did_not_run_is_none_that_nodes_were_waited_for(told: Told) -> None:
    told.opened(2, ev.FleetPlan(least=2, most=2), join_timeout_s=60.0)
    told.joined("n0", 0)
    told.tell(ev.TimeSkipped(gap_s=600.0), 610.1)
    told.tell(ev.Ticked(), 650.0)
    assert told.phase is Phase.GATHERING
    while told.phase is Phase.GATHERING:
        told.tick()
    assert told.now_s == pytest.approx(660.1, abs=0.1)


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


# Others for those that are gone --------------------------------------------------------------------------


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


# Going on ----------------------------------------------------------------------------------------------


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


# Ranks of any number -------------------------------------------------------------------------------------


def said(actions: list[ac.Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, ac.Say)]


def of_sizes(told: Told, most: int, *ranks: int, least: int | None = None) -> list[ac.Action]:
    """Nodes n0, n1, … with so many ranks each; the first attempt runs. What was said and done."""
    told.opened(2, ev.FleetPlan(least=least or most, most=most, spares=len(ranks) - most))
    actions = [action for slot, count in enumerate(ranks) for action in told.joined(f"n{slot}", slot, count)]
    told.fleet_started(1.0)
    told.step(10, 2.0)
    return actions


def without(told: Told, *nodes: str) -> list[ac.Action]:
    """Their guardruns are gone; the next attempt is ordered."""
    for node in nodes:
        told.tell(ev.NodeLeft(node=node, why="it was killed"), told.now_s + 1.0)
    return stopped_and_chosen(told)


def test_a_spare_with_as_many_ranks_is_taken_before_others(told: Told) -> None:
    of_sizes(told, 2, 4, 4, 2, 8, 4)
    actions = without(told, "n1")
    assert [start.nodes for start in starts(actions)] == [["n0", "n4"]] and told.state.world_size == 8
    assert [text for text in said(actions) if "next attempt" in text] == [
        "the next attempt goes without n1 and with n4"
    ]


def test_where_no_spare_has_as_many_the_job_goes_on_and_that_is_said(told: Told) -> None:
    of_sizes(told, 2, 2, 2, 1)
    actions = without(told, "n1")
    assert [start.nodes for start in starts(actions)] == [["n0", "n2"]] and told.state.world_size == 3
    assert "the next attempt goes without n1 and with n2 (3 ranks instead of 4)" in said(actions)


def test_a_job_that_shrinks_says_ranks_where_nodes_do_not_tell_them(told: Told) -> None:
    of_sizes(told, 3, 4, 2, 4, least=2)
    while told.phase is not Phase.STARTING:
        actions = without(told, "n1") if told.phase is Phase.RUNNING else told.tick()
    assert "the next attempt goes without n1 (2 nodes with 8 ranks instead of 3 with 10)" in said(actions)


def test_a_node_that_is_back_with_fewer_ranks_is_said(told: Told) -> None:
    of_sizes(told, 2, 2, 2)
    without(told, "n1")
    actions = told.joined("n1", 1, ranks=1)
    assert [start.nodes for start in starts(actions)] == [["n0", "n1"]]
    assert "the next attempt goes with the same nodes (3 ranks instead of 4)" in said(actions)


def test_each_of_several_places_goes_to_a_node_of_its_size(told: Told) -> None:
    of_sizes(told, 3, 2, 8, 4, 4, 8)
    [start] = starts(without(told, "n1", "n2"))
    assert start.nodes == ["n0", "n4", "n3"]


def test_a_place_that_has_its_size_is_not_given_to_another_before_it(told: Told) -> None:
    of_sizes(told, 3, 2, 8, 4, 4, 2)
    [start] = starts(without(told, "n1", "n2"))
    assert start.nodes == ["n0", "n4", "n3"], "n3 has n2's number of ranks, though n1's place comes first"


def test_a_job_that_grows_again_takes_those_with_as_many_first(told: Told) -> None:
    of_sizes(told, 3, 4, 4, 4, least=2)
    without(told, "n2")
    while told.phase is not Phase.STARTING:
        told.tick()
    told.fleet_started(told.now_s + 1.0)
    told.step(20, told.now_s + 1.0, attempt=1)
    assert said(told.joined("n3", 3, ranks=2)) == [
        "n3 waits with 2 ranks, where those that train have 4: it takes a place only where no other node can"
    ]
    told.joined("n4", 4, ranks=4)
    told.crashed(-9)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n1", "n4"]


def test_a_drained_node_stays_where_only_another_size_is_left_over(told: Told) -> None:
    of_sizes(told, 2, 4, 4, 2)
    assert drained(told, n1="disk; root") == ["n1 is drained (disk; root): training there goes on"]
    told.crashed(-9)
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n1"]


def test_a_drained_spare_with_as_many_ranks_is_better_than_another_size(told: Told) -> None:
    of_sizes(told, 2, 4, 4, 2, 4)
    drained(told, n3="disk; root")
    [start] = starts(without(told, "n1"))
    assert start.nodes == ["n0", "n3"]


def test_a_spare_of_another_size_is_said_once_whenever_it_comes(told: Told) -> None:
    odd = "waits with 1 rank, where those that train have 2: it takes a place only where no other node can"
    told.opened(2, ev.FleetPlan(least=2, most=2, spares=2))
    assert said(told.joined("n2", 2, ranks=1) + told.joined("n0", 0)) == []
    assert said(told.joined("n1", 1)) == [f"n2 {odd}"], "only now it is known who trains"
    told.fleet_started(1.0)
    assert said(told.joined("n3", 3, ranks=1)) == [f"n3 {odd}"]
    assert said(told.joined("n3", 3, ranks=1) + told.joined("n2", 2, ranks=1)) == []


def test_spares_as_large_as_one_of_those_that_train_need_no_word(told: Told) -> None:
    assert said(of_sizes(told, 2, 8, 4, 4, 8)) == []
