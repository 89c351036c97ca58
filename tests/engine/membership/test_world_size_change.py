"""Nodes with different numbers of ranks: who takes whose place, and what is said of a world size that changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing, place
from tests.engine.conftest import Told
from tests.engine.membership.stories import drained, starts, stopped_and_chosen


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


SIZES = st.lists(st.sampled_from([1, 2, 2, 4]), min_size=1, max_size=8)


@given(SIZES, st.integers(1, 4), st.data())
def test_no_place_changes_its_size_without_need(sizes: list[int], most: int, data: st.DataObject) -> None:
    names = [f"n{order}" for order in range(len(sizes))]
    fleet = Fleet(plan=ev.FleetPlan(least=1, most=most))
    for order, (node, ranks) in enumerate(zip(names, sizes, strict=True)):
        standing = data.draw(st.sampled_from([Standing.READY, Standing.READY, Standing.LOST]))
        drained = data.draw(st.sampled_from(["", "", "why"]))
        fleet.members[node] = Member(node=node, order=order, ranks=ranks, standing=standing, drained=drained)
    fleet.placed = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=most))
    ready = {node for node in names if fleet.members[node].standing is Standing.READY}
    placed = place(fleet, 100.0, 30.0)
    assert len(placed) == min(most, len(ready)) and set(placed) <= ready and len(set(placed)) == len(placed)
    if len(placed) == len(fleet.placed) == most:
        left_over = [fleet.members[node].ranks for node in ready - set(placed)]
        for old, new in zip(fleet.placed, placed, strict=True):
            before, after = fleet.members[old].ranks, fleet.members[new].ranks
            assert before == after or (old not in ready and before not in left_over)
