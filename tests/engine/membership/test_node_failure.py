"""Nodes that are lost together: one incident, or nobody's fault where the head hears nobody; and who is back."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.membership.node_failure import MANY
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import (
    CLOSED,
    incident,
    isolated,
    led,
    requeue_of,
    silent,
    starts,
    stopped_and_chosen,
)


def said(actions: list[ac.Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, ac.Say)]


def settled(told: Told, node: str, how: str = "") -> list[ac.Action]:
    return told.tell(ev.IsolationSettled(node=node, incident=incident(told).id, how=how))


def standings(told: Told) -> dict[str, Standing]:
    assert told.state.fleet is not None
    return {node: member.standing for node, member in told.state.fleet.members.items()}


def test_two_that_are_lost_in_one_moment_are_one_incident_and_both_are_isolated(told: Told) -> None:
    led(told, most=4, spares=3)
    silent(told, 3.0, "n1", "n2")
    actions = told.tick()
    assert told.now_s == pytest.approx(3.4 + 25.0, abs=0.1), "with the second, not one after the other"
    [told_once] = told.state.incidents.values()
    assert told_once.summary == (
        "n1, n2 and their ranks 2-5 cannot be reached: nothing has been heard of them for 25 s."
    )
    assert [(c.rank, c.node) for c in told_once.culprits] == [(2, "n1"), (3, "n1"), (4, "n2"), (5, "n2")]
    assert told_once.evidence["nodes"] == ["n1", "n2"]
    assert [(one["node"], one["silent_s"]) for one in told_once.evidence["lost"]] == [("n1", 25.4), ("n2", 25.0)]
    assert isolated(actions) == ["n1", "n2"] and kinds(actions).count("StopAttempt") == 1
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n4", "n5", "n3"]
    assert incident(told).action == "isolate_node"
    assert standings(told)["n1"] is standings(told)["n2"] is Standing.LOST


def test_two_that_are_killed_in_one_moment(told: Told) -> None:
    """Their peers raise; by then both are known to be gone."""
    led(told, most=4, spares=2)
    silent(told, 2.9, "n1", "n2", apart_s=0.02, is_dropped=True)
    for rank in (0, 1):
        told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=rank, error=CLOSED), 3.1)
        told.exits(rank, 1, 3.2)
    while not told.state.incidents:
        if "ReadExits" in kinds(told.tick()):
            told.read(told.now_s + 0.05)
    assert incident(told).summary == (
        "n1, n2 and their ranks 2-5 cannot be reached: their connections were closed, and nothing has been heard of "
        "them for 5 s."
    )
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n4", "n5", "n3"]


def test_who_is_found_to_be_lost_right_after_belongs_to_the_same_incident(told: Told) -> None:
    """A node that is dead is noticed at once; one of its rack, whose kernel lives a moment longer, by its silence."""
    led(told, most=4, spares=3)
    silent(told, 3.0, "n1", is_dropped=True)
    told.tick()
    assert [c.node for c in incident(told).culprits] == ["n1", "n1"] and told.phase is Phase.STOPPING
    told.tell(ev.NodeSuspected(node="n2", since_s=6.0), 11.0)
    actions = told.tick()
    assert told.now_s == pytest.approx(31.0, abs=0.1)
    assert said(actions) == ["n2 is lost, too: nothing has been heard of it for 25 s"]
    assert isolated(actions) == ["n2"] and kinds(actions) == ["WriteIncident", "Isolate"]
    [told_once] = told.state.incidents.values()
    assert {c.node for c in told_once.culprits} == {"n1", "n2"}
    assert told_once.summary == (
        "n1, n2 and their ranks 2-5 cannot be reached: n1: its connection was closed, and nothing has been heard of it "
        "for 5 s; n2: nothing has been heard of it for 25 s."
    )
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n4", "n5", "n3"] and incident(told).action == "isolate_node"


def test_who_falls_silent_while_the_others_are_stopped_did_not_cause_that(told: Told) -> None:
    led(told, most=4, spares=3)
    silent(told, 3.0, "n1", is_dropped=True)
    told.tick()
    told.tell(ev.NodeLeft(node="n2", why="its guardrun does not obey", is_unfit=True), 40.0)
    assert {c.node for c in incident(told).culprits} == {"n1"}
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n4", "n5", "n3"]


def test_what_is_lost_while_a_crash_is_dealt_with_is_only_said(told: Told) -> None:
    led(told, most=4, spares=3)
    told.exits(7, -11, 3.0)
    told.tick()
    told.read(told.now_s + 0.1)
    silent(told, 4.0, "n1", "n2", is_dropped=True)
    actions = told.tick()
    assert [text.partition(":")[0] for text in said(actions)] == ["n1 is lost, too", "n2 is lost, too"]
    assert not isolated(actions) and incident(told).cause == "segfault"


def test_who_is_back_before_the_next_attempt_takes_part_in_it_whatever_it_was_lost_with(told: Told) -> None:
    """A switch that is down twice: nobody is left out for good for what none of them has done."""
    led(told, most=3, spares=2)
    for attempt in range(3):
        silent(told, told.now_s + 1.0, "n1", "n2")
        told.tick()
        assert isolated([]) == [] and {c.node for c in incident(told).culprits} == {"n1", "n2"}
        for slot in (1, 2):
            told.joined(f"n{slot}", slot)
        [start] = starts(stopped_and_chosen(told))
        assert start.nodes == ["n0", "n1", "n2"] and incident(told).action == "restart"
        told.fleet_started(told.now_s + 1.0)
        told.step(20 + attempt, told.now_s + 1.0)


def test_nodes_that_are_missing_in_the_attempt_they_were_to_start_are_told_together(told: Told) -> None:
    led(told, most=3, spares=2)
    told.crashed(1, rank=0)
    assert starts(told.chosen())
    for node in ("n1", "n2"):
        told.tell(ev.NodeLeft(node=node, why="its guardrun hangs", is_unfit=True))
    there = [ev.Rank(global_rank=n, local_rank=n, pid=200 + n, node="n0") for n in range(2)]
    actions = told.tell(ev.AttemptStarted(attempt=1, ranks=there))
    assert [(c.rank, c.node) for c in incident(told).culprits] == [(None, "n1"), (None, "n2")]
    assert isolated(actions) == ["n1", "n2"]
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n3", "n4"]


def test_one_that_is_gone_before_it_has_told_of_its_ranks_is_the_culprit_itself(told: Told) -> None:
    led(told, most=2, spares=1)
    told.crashed(1, rank=0)
    assert starts(told.chosen())
    told.tell(ev.NodeLeft(node="n1", why="its guardrun was killed"))
    there = [ev.Rank(global_rank=n, local_rank=n, pid=200 + n, node="n0") for n in range(2)]
    told.tell(ev.AttemptStarted(attempt=1, ranks=there))
    assert incident(told).summary == "n1 is gone: its guardrun was killed."
    assert [(c.rank, c.node) for c in incident(told).culprits] == [(None, "n1")]


def test_of_thousands_few_are_named(told: Told) -> None:
    led(told, most=40, spares=0)
    silent(told, 3.0, *(f"n{number}" for number in range(1, 33)), apart_s=0.01)
    told.tick()
    assert incident(told).summary.startswith("n1, n2, n3, n4, n5, n6, n7, n8 and 24 more and their ranks 2-65 cannot")
    assert len(incident(told).culprits) == 64


def test_so_many_as_never_fail_by_themselves_are_not_isolated(told: Told) -> None:
    """A switch of 32 nodes: what drains them would have to be undone by hand for each."""
    led(told, most=40, spares=0)
    silent(told, 3.0, *(f"n{number}" for number in range(1, MANY + 2)), apart_s=0.01)
    actions = told.tick()
    assert not isolated(actions) and "StopAttempt" in kinds(actions)
    assert not starts(stopped_and_chosen(told)) and incident(told).action == "restart"
    again = [action for number in range(1, MANY + 2) for action in told.joined(f"n{number}", number)]
    assert [start.nodes for start in starts(again)] == [[f"n{number}" for number in range(40)]]


def test_guardruns_that_are_killed_one_after_the_other_are_one_incident(told: Told) -> None:
    """Who did that is not known: their nodes are left out, and nothing more."""
    led(told, most=3, spares=2)
    for number in (1, 2):
        assert not isolated(told.tell(ev.NodeLeft(node=f"n{number}", why="its guardrun was killed"), 3.0))
    assert incident(told).summary == (
        "n1, n2 and their ranks 2-5 are gone: n1: its guardrun was killed; n2: its guardrun was killed."
    )
    [start] = starts(stopped_and_chosen(told))
    assert start.nodes == ["n0", "n3", "n4"] and incident(told).action == "isolate_node"


def test_nobody_is_isolated_where_guardrun_may_not_act(told: Told) -> None:
    led(told, most=3, spares=1, act=False)
    silent(told, 3.0, "n1", "n2")
    actions = told.tick()
    assert not isolated(actions) and incident(told).action == "none" and told.phase is Phase.RUNNING


# The head's own link -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("spares", [0, 1, 2])
def test_where_the_head_hears_nobody_any_more_nobody_is_to_blame(told: Told, spares: int, is_dropped: bool) -> None:
    most = 3 if not spares else 2
    led(told, most, spares, is_named=True)
    told.tell(ev.SchedulerStatusChanged(may_requeue=True))
    others = [f"n{number}" for number in range(1, most + spares)]
    silent(told, 3.0, *others, is_dropped=is_dropped)
    actions = told.tick()
    cut = incident(told)
    assert (cut.cause, cut.culprits, cut.action) == ("node_lost", [], "restart")
    assert cut.summary.startswith(
        f"The head (n0) can reach none of its {len(others)} other nodes ({', '.join(others)})"
    )
    assert cut.evidence["unreached"] == others
    assert ("own link" in cut.summary and "own link" in cut.advice) is not is_dropped
    assert kinds(actions) == ["WriteIncident", "StopAttempt"], "nobody is isolated"
    assert len(said(actions)) == 1, "nor a spare's loss told beside it"
    assert not starts(stopped_and_chosen(told)) and told.phase is Phase.GATHERING
    assert incident(told).action == "restart"
    actions = [action for slot, node in enumerate(others, 1) for action in told.joined(node, slot)]
    assert kinds(actions) == ["StartAttempt"], "nor is there anything to withdraw"
    assert told.state.fleet is not None and told.state.fleet.placed == [f"n{number}" for number in range(most)]
    assert all(not member.returned_s for member in told.state.fleet.members.values())


def test_a_job_that_is_requeued_because_its_head_is_cut_may_have_the_same_nodes_again(told: Told) -> None:
    led(told, 2, 1, is_named=True)
    told.tell(ev.SchedulerStatusChanged(may_requeue=True))
    silent(told, 3.0, "n1", "n2")
    told.tick()
    stopped_and_chosen(told)
    assert requeue_of(told).exclude == []


def test_a_job_that_may_shrink_waits_for_those_that_its_head_is_cut_off_from(told: Told) -> None:
    """The head alone would do: but it would go on so until its next restart."""
    led(told, 3, 0, least=1)
    silent(told, 3.0, "n1", "n2")
    told.tick()
    assert not starts(stopped_and_chosen(told)) and told.phase is Phase.GATHERING
    told.joined("n2", 2)
    [start] = starts(told.joined("n1", 1))
    assert start.nodes == ["n0", "n1", "n2"]


def test_nor_does_it_wait_for_them_for_ever(told: Told) -> None:
    led(told, 3, 0, least=1)
    silent(told, 3.0, "n1", "n2")
    told.tick()
    assert not starts(stopped_and_chosen(told))
    began_s = told.now_s
    while told.phase is Phase.GATHERING:
        actions = told.tick()
    assert [start.nodes for start in starts(actions)] == [["n0"]]
    assert told.now_s - began_s == pytest.approx(told.state.settings.last_call_s, abs=0.1)


def test_spares_that_are_given_up_first_were_cut_off_with_the_others(told: Told) -> None:
    """Those that train are given more time where the job's own steps are long."""
    led(told, 2, 2)
    for number in range(1, 31):
        told.step(10 + number, 2.0 + 30 * number)
    silent(told, 903.0, "n1", "n2", "n3")
    told.tick()
    assert not told.state.incidents and standings(told)["n3"] is Standing.LOST
    told.tick()
    assert incident(told).culprits == [] and incident(told).evidence["unreached"] == ["n1", "n2", "n3"]


def test_with_one_other_node_it_is_held_to_be_that(told: Told) -> None:
    led(told, 2, 0)
    silent(told, 3.0, "n1")
    assert isolated(told.tick()) == ["n1"] and incident(told).action == "isolate_node"


def test_where_one_is_still_heard_the_head_s_link_is_well(told: Told) -> None:
    led(told, 4, 0, least=1)
    silent(told, 3.0, "n1", "n2")
    assert isolated(told.tick()) == ["n1", "n2"]


def test_who_was_lost_before_says_nothing_of_the_head_s_link(told: Told) -> None:
    """Nor does who was silent before; those that fell silent when the link was cut are not held against them."""
    led(told, 3, 2)
    told.tell(ev.NodeLeft(node="n4", why="it was killed"), 2.5)
    silent(told, 3.0, "n3")
    told.step(20, 27.0)
    told.tick()
    assert standings(told)["n3"] is Standing.LOST and not told.state.incidents
    silent(told, 30.0, "n1", "n2")
    assert not isolated(told.tick()) and incident(told).evidence["unreached"] == ["n1", "n2"]


def test_one_that_fell_silent_well_before_the_cut_is_lost_by_itself(told: Told) -> None:
    led(told, 4, 0)
    silent(told, 3.0, "n1")
    silent(told, 15.0, "n2", "n3")
    assert isolated(told.tick()) == ["n1"]
    actions = told.tick()
    assert not isolated(actions) and {c.node for c in incident(told).culprits} == {"n1"}
    assert standings(told)["n3"] is Standing.LOST


def test_when_the_link_is_back_the_others_are_given_time_to_be_heard(told: Told) -> None:
    """Connections are found again one after the other: the last one is not lost because the first was quicker."""
    led(told, 3, 0)
    silent(told, 3.0, "n1", "n2")
    told.tell(ev.NodeContactRestored(node="n1"), 27.5)
    due = told.engine.next_deadline_s()
    assert due is not None and due > 50.0
    told.tell(ev.NodeContactRestored(node="n2"), 34.0)
    told.step(20, 35.0)
    assert not told.state.incidents


def test_a_node_that_is_dead_all_the_same_is_found_later(told: Told) -> None:
    led(told, 3, 0)
    silent(told, 3.0, "n1", "n2")
    told.tell(ev.NodeContactRestored(node="n1"), 20.0)
    while not told.state.incidents:
        actions = told.tick()
    assert isolated(actions) == ["n2"] and told.now_s == pytest.approx(20.0 + 1.5 * 17.0, abs=0.1), (
        "silences end by themselves here"
    )


# Back --------------------------------------------------------------------------------------------------


def lost_and_chosen(told: Told) -> list[ac.Action]:
    led(told, 2, 1)
    silent(told, 3.0, "n1")
    assert isolated(told.tick()) == ["n1"]
    return stopped_and_chosen(told)


def test_what_is_still_to_be_done_is_withdrawn_when_the_node_is_back(told: Told) -> None:
    lost_and_chosen(told)
    actions = told.joined("n1", 1)
    assert [a for a in actions if isinstance(a, ac.WithdrawIsolation)] == [
        ac.WithdrawIsolation(node="n1", incident="001")
    ]
    assert said(actions) == ["n1 is back: it waits for the next attempt"]
    assert not isolated(told.tell(ev.SupervisorRestarted())), "nor is it begun anew"


@pytest.mark.parametrize("how", ["drained", "under quarantine", "drained and under quarantine"])
def test_what_has_been_done_stands_and_is_said_once(told: Told, how: str) -> None:
    lost_and_chosen(told)
    assert settled(told, "n1", how) == []
    still = f"n1 is back, and still {how} for incident 001: `guardctl node release n1` ends that"
    assert said(told.joined("n1", 1)) == ["n1 is back: it waits for the next attempt", still]
    assert said(told.joined("n1", 1)) == []


def test_outside_of_slurm_nothing_is_left_to_be_said(told: Told) -> None:
    lost_and_chosen(told)
    settled(told, "n1")
    actions = told.joined("n1", 1)
    assert kinds(actions) == [] and said(actions) == ["n1 is back: it waits for the next attempt"]


def test_a_drain_that_comes_through_in_the_same_moment_is_said(told: Told) -> None:
    lost_and_chosen(told)
    told.joined("n1", 1)
    assert said(settled(told, "n1", "drained")) == [
        "n1 is back, and still drained for incident 001: `guardctl node release n1` ends that"
    ]


def test_a_run_that_is_continued_does_not_drain_who_is_back(told: Told) -> None:
    lost_and_chosen(told)
    plan = ev.FleetPlan(least=2, most=2, spares=1)
    settings = ev.Settings()
    again = told.tell(
        ev.RunContinued(settings=settings, node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan), 60.0
    )
    assert isolated(again) == ["n1"]
    told.chosen()
    told.joined("n0", 0)
    assert "WithdrawIsolation" in kinds(told.joined("n1", 1))


def test_a_node_that_is_isolated_for_another_cause_stays_so(told: Told) -> None:
    """Only silence is over when a node is heard."""
    led(told, 2, 1)
    told.crashed(1, ev.ErrorRecord(error="torch.AcceleratorError", message="CUDA error: GPU is lost"), rank=2)
    told.chosen()
    assert told.state.nodes.unsettled == {"n1": "001"}
    assert "WithdrawIsolation" not in kinds(told.joined("n1", 1))
    assert told.state.nodes.unsettled == {"n1": "001"}
