"""Guardrun's own parts fail, one after the other in one run; training feels it only where ranks die with them."""

from __future__ import annotations

import signal

import pytest

from tests.fleet_runs.jobs import QUICK, Job, flags, kill, replaced
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("netns")


PATIENT = QUICK.replace("lost_s = 8\nterm_s = 5", "lost_s = 20\nterm_s = 15")
"""A supervisor that was stopped is silent until another one has taken its place: on a busy machine nearly that long."""


def test_supervisors_and_launchers(job: Job) -> None:
    """Long: each part of two nodes is killed and stopped in turn."""
    job.start(2, ["head", "node1"], config=PATIENT)
    pids = [mark["pid"] for mark in job.first_steps(0, 2)]

    # A supervisor alone: training does not notice.
    for name in ("node1", "head"):
        for signum in (signal.SIGKILL, signal.SIGSTOP):
            old = job[name].supervisor()
            kill(old, signum)
            replaced(job, name, old.pid)
            job.in_touch("node1")
    assert all(map(is_alive, pids))
    assert not job.incidents()

    # And a fault is found all the same; while its ranks are being stopped, the head's supervisor is killed again.
    kill(job["node1"].ranks()[0])
    job.happens('"stop_attempt"')
    kill(job["head"].supervisor())
    told = job.incident(1)
    assert (told["kind"], told["cause"], told["action"]) == ("crash", "killed", "restart")
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(1, "node1")]
    assert job.where(1, 2) == ["head", "node1"]
    job.mended(1, attempt=1)

    # Once more while the next attempt is being started: the head's, then the other's.
    kill(job["head"].ranks()[0])
    job.happens('"start_attempt"', 3)
    kill(job["head"].supervisor())
    kill(job["node1"].supervisor())
    first = job.first_steps(2, 2)
    assert all(is_alive(mark["pid"]) for mark in first)
    assert len(job["head"].ranks()) == len(job["node1"].ranks()) == 1
    assert [one["rank"] for one in job.incidents()[1]["culprits"]] == [0]

    # A launcher: its ranks die with it, its deputy (a new one, which is there by then) says so, and another guardrun
    # takes its place.
    job.in_touch("node1")
    kill(job["node1"].launcher())
    assert job["node1"].wait(10.0) == -signal.SIGKILL
    job.gone([first[1]["pid"]], 5.0, "node1's rank")
    told = job.incident(3)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("node_lost", ["node1"])
    assert "its guardrun was killed" in told["summary"], "nobody has waited until it was silent for long"
    wait_until(lambda: not job["node1"].processes(), 10.0, "node1 to be empty")
    job.start_one("node1", *flags(1), known_as="node1")
    assert job.where(3, 2) == ["head", "node1"]
    assert job.at()["run"] == first[0]["run"]
    job.mended(3, attempt=3)
    assert job.finish() == {"head": 0, "node1": 0}
    assert [one["cause"] for one in job.summary()["incidents"]] == ["killed", "killed", "node_lost"]
