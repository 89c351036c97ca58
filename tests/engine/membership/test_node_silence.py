"""Nodes that fall silent: when they are lost, when contact alone is, and what is said of it."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.membership.node_failure import TOGETHER_S
from guardrun.supervisor.engine.membership.node_silence import DROPPED_S, lost_together_s
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.state.job_nodes import Standing
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import CLOSED, incident, running, starts, stopped_and_chosen

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
        told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=rank, error=CLOSED), 3.1)
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


@pytest.mark.parametrize("is_told", [False, True])
def test_a_node_that_trains_on_after_its_connection_was_closed_has_a_dead_supervisor_alone(
    told: Told, is_told: bool
) -> None:
    """Its rank falls then: whoever tells of it has to be started first, and how long that takes is the machine's."""
    running(told)
    told.tell(ev.NodeSuspected(node="n1", since_s=2.9, is_dropped=True), 3.0)
    for number in range(1, 3 + int(DROPPED_S)):
        told.step(10 + number, 3.0 + number, range(4))
    last_s = told.now_s
    if is_told:  # the other node's ranks lose it, and are stopped
        told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=0, error=CLOSED), last_s + 0.5)
        told.exits(0, 1, last_s + 0.6)
        assert told.phase is Phase.STOPPING
    told.tell(ev.Ticked(), last_s + 3 * DROPPED_S)
    assert not told.state.incidents
    while not told.state.incidents and told.now_s < last_s + 60:
        told.tick()
    assert incident(told).cause == "node_lost"
    assert told.now_s == pytest.approx(last_s + told.state.settings.lost_s, abs=1.0)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_an_exit_on_a_node_whose_clock_is_ahead_is_its_own(told: Told, is_told_first: bool) -> None:
    """Its rank ends with 3; the head's loses it, and may be told of sooner."""
    running(told)
    lost = ev.ErrorRecord(error="RuntimeError", message="Connection closed by peer", traceback="torch/distributed/x.py")
    fell = ev.RankExited(attempt=0, global_rank=2, pid=1, exitcode=3, at_s=10.012)
    if is_told_first:
        told.tell(fell, 10.0)
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=0, error=lost), 10.001)
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


# The head did not run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told_before", [True, False])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_silence_from_before_the_head_was_stopped_counts_from_its_waking(
    told: Told, is_told_before: bool, is_dropped: bool
) -> None:
    """A process that was stopped goes on where it was: what it had seen may be told after it has noticed."""
    running(told)
    events: list[ev.Event] = [ev.NodeSuspected(node="n1", since_s=3.0, is_dropped=is_dropped)]
    for event in [*events, ev.TimeSkipped(gap_s=40.0)] if is_told_before else [ev.TimeSkipped(gap_s=40.0), *events]:
        told.tell(event, 8.0 if is_told_before and event in events else 48.0)
    told.tell(ev.Ticked(), 48.0 + min(told.state.settings.lost_s, DROPPED_S) - 0.5)
    assert not told.state.incidents
    told.tick()
    assert incident(told).cause == "node_lost", "it is silent all the same"
    assert told.now_s == pytest.approx(48.0 + (DROPPED_S if is_dropped else told.state.settings.lost_s), abs=0.1)
    assert incident(told).evidence["silent_s"] < 30.0


@pytest.mark.parametrize("skipped_s", [30.0, 3600.0])
def test_a_spare_is_not_lost_in_time_that_the_head_did_not_run(told: Told, skipped_s: float) -> None:
    running(told)
    told.tell(ev.NodeSuspected(node="n2", since_s=3.0), 8.0)
    told.tell(ev.TimeSkipped(gap_s=skipped_s), 9.0 + skipped_s)
    told.tell(ev.Ticked(), 9.0 + skipped_s + told.state.settings.lost_s - 1.0)
    assert told.state.fleet is not None and told.state.fleet.members["n2"].standing is Standing.SILENT


# Which are lost together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "together_s"),
    [([], None), ([7.0], 7.0), ([9.0, 7.0], 9.0), ([7.0, 7.0 + TOGETHER_S + 0.1], 7.0), ([3.0, 7.0, 11.0], 7.0)],
)
def test_silent_nodes_are_given_up_with_those_that_are_due_soon_after(
    times: list[float], together_s: float | None
) -> None:
    assert lost_together_s(times) == together_s
