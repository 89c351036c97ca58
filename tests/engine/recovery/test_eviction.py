"""Which node an incident leaves out, and that most leave out none."""

from __future__ import annotations

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.health.base.findings import Finding, Response
from tests.engine.conftest import Told
from tests.engine.membership.stories import incident, running, starts, stopped_and_chosen


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


def test_a_requeued_run_keeps_who_is_out(told: Told) -> None:
    test_a_failure_without_a_cause_swaps_the_node_the_second_time(told)
    plan = ev.FleetPlan(least=2, most=2, spares=1)
    told.tell(ev.RunContinued(settings=ev.Settings(), node="n0", world_size=2, wall_s=0.0, session=1, fleet=plan))
    told.chosen()
    assert not starts(told.joined("n0", 0) + told.joined("n1", 1))
    assert starts(told.joined("n2", 2))[0].nodes == ["n0", "n2"]


def test_who_is_left_out_stays_so_when_its_guardrun_ends(told: Told) -> None:
    test_a_failure_without_a_cause_swaps_the_node_the_second_time(told)
    told.fleet_started(told.now_s + 0.5)
    [said] = told.tell(ev.StopRequested(signum=2, node="n1"))
    assert isinstance(said, ac.Say) and said.text == "n1 leaves: SIGINT to its guardrun; it was left out already"
    assert told.state.fleet is not None and told.state.fleet.members["n1"].standing is Standing.OUT
