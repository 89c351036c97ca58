"""A node that was left out is repaired, and released by a person: the job takes it back."""

from __future__ import annotations

import os
import pwd

import pytest

from tests.fleet_runs.jobs import Job, guardctl, kill
from tests.fleet_runs.own_files import lacking_a_module

pytestmark = pytest.mark.real("netns")


@pytest.mark.timeout(600)
def test_it_is_a_spare_again_and_trains_when_it_is_needed(job: Job) -> None:
    """Long: a node is left out, released, and needed again."""
    with lacking_a_module(job, "node1", spares=("node2",)):
        job.start(2, ["head", "node1", "node2"], spares=1)
        assert job.where(1, 2) == ["head", "node2"]
    first = job.at()
    guardctl(job, "node1", "release", "node1", "--reason=installed")
    user = pwd.getpwuid(os.getuid()).pw_name
    job.says("head", f"node1 was released by {user} (installed): it waits for the next attempt")
    assert job.at()["pid"] == first["pid"], "nobody is disturbed for it"

    kill(job["node2"].launcher())
    assert job.where(2, 2) == ["head", "node1"]
    codes = job.finish()
    assert (codes["head"], codes["node1"]) == (0, 0)
    assert "the next attempt goes without node2 and with node1" in job["head"].output
