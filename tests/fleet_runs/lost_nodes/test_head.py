"""The head dies with everything on it: the others end their ranks; the same command goes on where the run was."""

from __future__ import annotations

import signal
import time

import pytest

from tests.fleet_runs.jobs import QUICK, Job, flags, kill
from tests.runs.runs import check_dates

pytestmark = pytest.mark.real("netns")

MORE = ("--guard-run-id=long", "--max-restarts=2")


def test_the_head_dies_and_comes_back(job: Job) -> None:
    """What the run knew goes on: who is left out, what has happened, how many restarts are left."""
    job.start(2, ["head", "node1", "node2"], *MORE, spares=1, config=QUICK)
    assert job.where(0, 2) == ["head", "node1"]
    for attempt, second in ((1, "node1"), (2, "node2")):
        job.advance(15)
        kill(job["node1"].ranks()[0])
        assert job.where(attempt, 2) == ["head", second]
        job.mended(attempt, attempt)
    job.advance(15)
    [rank] = job["node2"].ranks()
    died_s = time.monotonic()
    job["head"].host.crash()
    step = job.at()["step"]
    job.gone([rank.pid], 20.0, "node2's rank")  # its peer is gone: it falls, or its lease is over
    assert [job[name].process.poll() for name in ("node1", "node2")] == [None, None]

    back_s = time.monotonic()
    job.start_one("head", *flags(0, 2, spares=1), *MORE)
    first = job.first_steps(3, 2)
    assert [mark["node"] for mark in first] == ["head", "node2"]
    assert step - 25 <= first[0]["from"] <= step
    assert not job["node1"].ranks()
    job.advance(5)
    kill(job["node2"].ranks()[0])
    codes = job.ended()
    assert codes == dict.fromkeys(codes, 128 + signal.SIGKILL)
    [report] = job.run_dir.glob("incidents/003-*/report.html")
    told = f"incident 003: {job.incidents()[2]['summary'].rstrip('.')}; report, on head: {report}"
    for name in ("node1", "node2"):  # each may have a terminal of its own
        assert "guardrun: the run was given up: all 2 restarts are used up" in job[name].output
        assert told in job[name].output
    summary = job.summary()
    assert (summary["run_id"], summary["outcome"], summary["restarts"]) == ("long", "gave_up", 2)
    assert "all 2 restarts are used up" in summary["reason"]
    assert [(one["cause"], one["action"]) for one in summary["incidents"]] == [
        ("killed", "restart"),
        ("killed", "isolate_node"),
        ("killed", "give_up"),
    ]
    assert [one["attempt"] for one in summary["attempts"]] == [0, 1, 2, 3]
    check_dates(job.run_dir)  # as they were before it died
    assert summary["lost_s"]["other"] > back_s - died_s, "nobody trained"
