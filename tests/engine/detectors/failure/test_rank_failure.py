"""Crashes: of which only a log that ranks share says why, and those that others know to be none."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import ExitTrace
from tests.engine.conftest import Told, kinds
from tests.engine.membership.stories import CLOSED, led, silent

ECC = "what(): CUDA error: uncorrectable ECC error encountered"
SAID = {"node-a": ECC}


def test_the_one_rank_that_aborted_is_who_said_it(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    told.tell(ev.ExitsRead(attempt=0, traces=[], last_words=SAID), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, [c.rank for c in incident.culprits]) == ("gpu_lost", [1])
    assert incident.evidence["stderr"] == ECC
    assert "SIGABRT): CUDA error: uncorrectable ECC error encountered" in incident.summary


@pytest.mark.parametrize(("codes", "cause"), [({1: -6, 2: -6}, "abort"), ({1: -11}, "segfault"), ({1: -9}, "killed")])
def test_where_several_or_none_aborted_nobody_said_it(told: Told, codes: dict[int, int], cause: str) -> None:
    told.running(3)
    for rank, code in codes.items():
        told.exits(rank, code, 20.0)
    told.tick()
    told.tell(ev.ExitsRead(attempt=0, traces=[], last_words=SAID), 20.5)
    told.tell(ev.Ticked(), 23.0)
    incident = told.incidents["001"]
    assert incident.cause == cause
    assert "stderr" not in incident.evidence


def test_another_node_s_words_and_words_of_its_own(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    own = ExitTrace(global_rank=1, stderr_tail="[rank1]: free(): invalid pointer")
    told.tell(ev.ExitsRead(attempt=0, traces=[own], last_words={**SAID, "node-b": ECC}), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, incident.evidence["stderr"]) == ("abort", "[rank1]: free(): invalid pointer")


def test_lines_of_its_own_that_say_nothing_of_its_end_keep_nobody_from_hearing_it(told: Told) -> None:
    told.running(3)
    told.exits(1, -6, 20.0)
    told.tick()
    own = ExitTrace(global_rank=1, stderr_tail="[rank1]:[W123] using devices that are unknown by this process")
    told.tell(ev.ExitsRead(attempt=0, traces=[own], last_words=SAID), 20.5)
    incident = told.incidents["001"]
    assert (incident.cause, incident.evidence["stderr"]) == ("gpu_lost", f"{own.stderr_tail}\n{ECC}")


def test_the_loss_of_their_node_explains_what_its_peers_died_of(told: Told) -> None:
    """The restart doesn't wait for exits that have not been read by then."""
    led(told)
    silent(told, 20.0, "n1", is_dropped=True)
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=0, error=CLOSED), 20.2)
    told.exits(0, 1, 20.3)
    assert kinds(told.stopped(20.5)) == ["ReadExits"]
    actions = told.tick()
    for _ in range(5):
        actions = told.tick() if told.state.is_crashing else actions
    assert "ChooseCheckpoint" in kinds(actions)
    assert [incident.cause for incident in told.incidents.values()] == ["node_lost"]


def test_a_crash_under_way_is_not_told_once_the_job_is_cancelled(told: Told) -> None:
    told.running()
    told.exits(1, -11, 20.0)
    told.tick()
    told.tell(ev.PreemptionNoticed(signum=15, is_why_asked=True), 20.5)
    told.tell(ev.SchedulerStatusChanged(why="cancelled"), 20.6)
    assert told.read(20.7) == []
    assert kinds(told.stopped(21.0)) == ["FinishRun"]


def test_time_that_was_nobodys_does_not_count_for_a_rank_that_raised(told: Told) -> None:
    told.running()
    told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=1, error=CLOSED), 20.0)
    told.tell(ev.TimeSkipped(gap_s=15.0), 38.0)
    assert kinds(told.tell(ev.Ticked(), 50.0)) == []
    assert kinds(told.tell(ev.Ticked(), 60.0)) == ["StopAttempt", "ReadExits"]


def test_the_node_that_nccl_has_lost_is_told_by_name(told: Told) -> None:
    """NCCL names an address, or a host; the sentence has the job's node, and blames nobody for a network."""
    led(told)
    told.tell(ev.NodeJoined(node="n1", slot=1, ranks=2, attempt=0, addresses=["10.0.0.7"]))
    message = "NCCL error in: P.cpp:1, remote\nncclRemoteError: A call failed.\nLast error:\nNET/IB: peer went"
    for rank, peer in enumerate(["from peer 10.0.0.7<41234>", "remote peer n1.cluster<4242>"]):
        error = ev.ErrorRecord(error="torch.distributed.DistBackendError", message=f"{message}: {peer}", at_s=20.0)
        told.tell(ev.UncaughtExceptionReported(attempt=0, global_rank=rank, error=error), 20.0)
        told.exits(rank, 1, 20.1)
    told.stopped(20.5)
    while not told.incidents:
        told.tick()
        told.read(told.now_s + 0.1)
    incident = told.incidents["001"]
    assert (incident.cause, incident.culprits) == ("nccl_error", [])
    assert "(10.0.0.7, n1; n1.cluster, n1)" in incident.summary
