"""Two attempts at once: a node without contact goes on only while the others' end would be its own."""

from __future__ import annotations

import json

import pytest

from tests.fleet_runs.jobs import Job, kill

pytestmark = pytest.mark.real("netns")

LONG_S = 15.0
"""Three times the lease of QUICK, and well beyond what a node has to be lost."""


def test_ranks_that_need_no_others_are_gone_before_the_next_attempt(job: Job) -> None:
    """Long: a lease has to end."""
    job.start(2, ["head", "node1", "node2"], spares=1, script_args=["--alone"])
    job.first_steps(0, 2)
    [rank] = job["node1"].ranks()
    job.in_touch("node1")
    job.lab.cut(job["node1"].host)
    kill(job["head"].ranks()[0])
    gone_s = job.gone([rank.pid], 30.0, "node1's rank")
    first = job.first_steps(1, 2)
    assert [mark["node"] for mark in first] == ["head", "node2"]
    assert all(mark["at_s"] > gone_s for mark in first)
    assert not job.tied()
    job.says("node1", "its ranks have done nothing with those of other nodes")
    job.lab.restore(job["node1"].host)
    job.says("head", "node1 is back")

    job["node2"].host.crash()  # whole: what the head's rank does by itself says nothing of it
    told = job.incident(2, 15.0)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("node_lost", ["node2"])
    assert job.where(2, 2) == ["head", "node1"]
    codes = job.finish()
    assert (codes["head"], codes["node1"]) == (0, 0)


def test_ranks_in_step_with_others_go_on_without_contact(job: Job) -> None:
    """The head cannot be heard, and training needs it not: nobody is stopped for that."""
    job.start(2, ["head", "node1"])
    job.wait_until_tied("node1")
    [join_file] = (job.folder / "guardrun-runs").glob(".join-*@head")
    to_head = ["ipproto", "tcp", "dport", str(json.loads(join_file.read_text())["port"]), "blackhole"]
    job["node1"].host.run("ip", "rule", "add", *to_head)
    job.says("head", "contact with node1 lost")
    began_s = job.at()["at_s"]
    job.wait_for(lambda: job.at(1)["at_s"] > began_s + LONG_S, 60.0, "node1 to go on")
    job["node1"].host.run("ip", "rule", "del", *to_head)
    job.says("head", "contact with node1 is back")
    assert not job.incidents() and job.at(1)["attempt"] == 0
    assert set(job.finish().values()) == {0}
