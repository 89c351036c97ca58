"""A folder of runs on a network file system that takes its time: a job forms, trains and is mended all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fleet_runs.jobs import Job, kill
from tests.support.processes import is_alive
from tests.support.slowmount import slow_mount

pytestmark = [pytest.mark.real("netns"), pytest.mark.real("sshfs")]

NAMES = ("head", "node1", "node2")
LATE_S = 0.06
"""Each answer, of which opening a file takes several: thirty times what a file server takes."""


@pytest.fixture
def slow(job: Job, tmp_path: Path) -> Iterator[Path]:
    """Where all hosts see the folder of runs so late."""
    behind, at = job.folder / "guardrun-runs", tmp_path / "slow"
    for path in (behind, at):
        path.mkdir()
    with ExitStack() as stack:
        for name in NAMES:
            within = ("nsenter", f"--target={job.lab.host(name).namespaces.pid}", "--mount")
            stack.enter_context(slow_mount(behind, at, LATE_S, within))
        stack.callback(job.close)
        yield at


@pytest.mark.timeout(240)
def test_a_job_does_not_feel_it(job: Job, slow: Path) -> None:
    """Long: every file operation on the folder of runs takes its time."""
    job.start(2, NAMES, f"--guard-dir={slow}", spares=1)
    first = job.first_steps(0, 2)
    job.advance(60)
    assert all(is_alive(mark["pid"]) for mark in first) and not job.incidents()

    kill(job["node1"].ranks()[0])
    job.first_steps(1, 2)
    told = job.incident(1)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("killed", ["node1"])
    job.mended(1, attempt=1)

    job.advance(12)
    job.lab.cut(job.lab.host("node1"))
    assert job.incident(2)["cause"] == "node_lost"
    assert job.where(2, 2) == ["head", "node2"]
    job.mended(2, attempt=2)
    assert job.finish(timeout_s=60.0)["head"] == 0
