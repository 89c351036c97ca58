"""A whole node does not run for a while, as where it is frozen, suspended or starved: nothing of the job is lost."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

from tests.fleet_runs.jobs import QUICK, Job, kill
from tests.support.processes import Process, is_alive

pytestmark = pytest.mark.real("netns")

PATIENT = QUICK.replace("lost_s = 8\nterm_s = 5", "lost_s = 20\nterm_s = 8")


APART_S = 7.0
"""Longer than a node asks a head that cannot be reached."""


def freeze(job: Job, *names: str, seconds: float) -> None:
    """Have nothing of these nodes run for so long, and each after the first for longer."""
    frozen = [job[name].processes() for name in names]
    for processes in frozen:
        send(processes, signal.SIGSTOP)
    for number, processes in enumerate(frozen):
        time.sleep(APART_S if number else seconds)
        send(processes, signal.SIGCONT)


def send(processes: list[Process], signum: signal.Signals) -> None:
    """To those that are still there: a look's py-spy, say, ends whenever it is through."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            kill(process, signum)


def test_a_node_that_is_frozen_goes_on_where_it_was(job: Job) -> None:
    """Long: within its lease, beyond it, and the whole job for longer than a node may be silent, its head last."""
    job.start(2, ["head", "node1", "node2"], spares=1, config=PATIENT)
    pids = [mark["pid"] for mark in job.first_steps(0, 2)]
    job.wait_until_tied("node1")
    for names, seconds in ((["node1"], 6.0), (["node1"], 12.0), (["node1", "node2", "head"], 24.0)):
        freeze(job, *names, seconds=seconds)
        job.in_touch("node1")
        job.advance(10)
        assert all(map(is_alive, pids)), f"{names} for {seconds} s\n{job.outputs()}"
    assert not job.incidents()
    assert job.finish() == {"head": 0, "node1": 0, "node2": 0}
    assert job.summary()["incidents"] == []
