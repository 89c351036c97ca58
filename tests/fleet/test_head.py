"""The head dies with everything on it: the others end their ranks; the same command goes on where the run was."""

from __future__ import annotations

import time

import pytest

from tests.fleet.jobs import QUICK, Job, flags, kill

pytestmark = pytest.mark.real("netns")


def test_the_head_dies_and_comes_back(job: Job) -> None:
    job.start(2, ["head", "node1"], "--guard-run-id=long", config=QUICK)
    job.first_steps(0, 2)
    job.advance(15)
    kill(job["node1"].ranks()[0])
    job.first_steps(1, 2)
    job.recovered(1)
    job.advance(15)
    step = job.at()["step"]
    [rank] = job["node1"].ranks()
    died_s = time.monotonic()
    job["head"].host.crash()
    job.gone([rank.pid], 20.0, "node1's rank")  # its peer is gone: it falls, or its lease is over
    assert time.monotonic() - died_s < 20.0
    assert job["node1"].process.poll() is None

    job.start_one("head", *flags(0), "--guard-run-id=long")
    first = job.first_steps(2, 2)
    assert [mark["node"] for mark in first] == ["head", "node1"]
    assert step - 25 <= first[0]["from"] <= step
    job.advance(5)
    assert job.finish() == {"head": 0, "node1": 0}
    summary = job.summary()
    assert summary["run_id"] == "long"
    assert summary["incidents"][0]["cause"] == "killed"
    assert [one["attempt"] for one in summary["attempts"]] == [0, 1, 2]
