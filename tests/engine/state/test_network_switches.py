"""Which nodes follow on one another: those below one switch, as far as it is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.state.job_nodes import by_switch, nearest
from tests.engine.conftest import Told
from tests.engine.membership.stories import starts, stopped_and_chosen

SIX = [f"n{number}" for number in range(1, 7)]
PATHS = st.lists(st.sampled_from("abc"), max_size=3)
NETWORKS = st.dictionaries(st.sampled_from([f"n{number}" for number in range(12)]), PATHS)


@pytest.mark.parametrize(
    ("network", "order"),
    [
        ({}, "n1 n2 n3 n4 n5 n6"),
        ({node: ["top"] for node in SIX}, "n1 n2 n3 n4 n5 n6"),
        ({"n1": ["t", "a"], "n2": ["t", "b"], "n3": ["t", "a"], "n4": ["t", "b"]}, "n1 n3 n2 n4 n5 n6"),
        # Leaves of one spine before those of another.
        (
            {
                "n1": ["x", "a"],
                "n2": ["y", "b"],
                "n3": ["x", "c"],
                "n4": ["x", "a"],
                "n5": ["y", "d"],
                "n6": ["y", "b"],
            },
            "n1 n4 n3 n2 n6 n5",
        ),
        # A switch that has the name of another's: they are not the same. And a node with the name of a switch.
        ({"n1": ["x", "a"], "n2": ["y", "a"], "n3": ["x", "a"], "n4": ["n5"]}, "n1 n3 n2 n4 n5 n6"),
    ],
)
def test_nodes_of_one_switch_follow_on_one_another(network: dict[str, list[str]], order: str) -> None:
    assert by_switch(SIX, network) == order.split()


@given(st.lists(st.sampled_from([f"n{number}" for number in range(12)]), unique=True), NETWORKS)
def test_nobody_is_lost_and_whoever_is_first_stays_so(nodes: list[str], network: dict[str, list[str]]) -> None:
    found = by_switch(nodes, network)
    assert sorted(found) == sorted(nodes) and found[:1] == nodes[:1]
    assert by_switch(found, network) == found, "an order that is right is left alone"
    for depth in range(1, 4):
        switches = [tuple(network[node][:depth]) for node in found if len(network.get(node, [])) >= depth]
        runs = [one for index, one in enumerate(switches) if not index or switches[index - 1] != one]
        assert len(runs) == len(set(runs)), "each switch is entered once"


def test_the_nearest_is_the_one_with_most_switches_in_common() -> None:
    network = {"n1": ["t", "a"], "n4": ["t", "b"], "n5": ["t", "a"], "n6": ["u", "a"]}
    assert nearest(["n4", "n5", "n6"], "n1", network) == "n5"
    assert nearest(["n6", "n4"], "n1", network) == "n4"
    assert nearest(["n6", "n7"], "n1", network) == "n6", "the first of those that are as far"
    assert nearest(["n7", "n6"], "n9", network) == "n7"


# In a job ----------------------------------------------------------------------------------------------


def opened(told: Told, most: int, spares: int, switches: str, least: int | None = None) -> list[ac.Action]:
    """Nodes n0, n1, …, below the switch of that letter each; what came of them."""
    told.opened(2, ev.FleetPlan(least=least or most, most=most, spares=spares))
    actions: list[ac.Action] = []
    for slot, switch in enumerate(switches):
        actions += told.joined(f"n{slot}", slot, switches=f"top.{switch}")
    return actions


def lose(told: Told, node: str) -> list[str]:
    """The node is lost; the nodes of the attempt after."""
    told.fleet_started(told.now_s + 0.5)
    told.tell(ev.NodeSuspected(node=node, since_s=told.now_s), told.now_s + 5.0)
    told.tick()
    [start] = starts(stopped_and_chosen(told))
    return start.nodes


def test_the_first_nodes_train_in_the_order_of_their_switches(told: Told) -> None:
    [start] = starts(opened(told, 4, 1, "ababa"))
    assert start.nodes == ["n0", "n2", "n1", "n3"], "n4 is a spare, whatever it hangs below"


def test_the_nearest_spare_takes_the_place_and_nobody_else_moves(told: Told) -> None:
    opened(told, 4, 2, "ababab")
    assert lose(told, "n3") == ["n0", "n2", "n1", "n5"]


def test_a_drained_spare_is_taken_last_however_near(told: Told) -> None:
    opened(told, 4, 2, "ababab")
    told.tell(ev.SchedulerStatusChanged(drained={"n5": "maintenance; root"}))
    assert lose(told, "n3") == ["n0", "n2", "n1", "n4"]


def test_a_node_that_comes_back_hangs_where_it_says(told: Told) -> None:
    opened(told, 2, 1, "aba")
    told.joined("n2", 2, switches="top.b")
    assert told.state.fleet is not None and told.state.fleet.members["n2"].switches == ["top", "b"]


def test_a_smaller_job_is_sorted_too(told: Told) -> None:
    opened(told, 4, 0, "aba", least=2)
    while not (started := starts(told.tick())):
        assert told.now_s < 600
    [start] = started
    assert start.nodes == ["n0", "n2", "n1"]
