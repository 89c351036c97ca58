"""Two attempts at once: a node without contact goes on only while the others' end would be its own."""

from __future__ import annotations

import json

import pytest

from guardrun.supervisor.engine.membership.node_silence import DROPPED_S
from tests.fleet_runs.jobs import CONFIG, Job, kill

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


def give_up_supervisor(job: Job, name: str) -> None:
    """Kill every one of a node's supervisors until its launcher starts no more."""

    def is_given_up() -> bool:
        for process in job[name].processes():
            if "guardrund" in process.command:
                kill(process)
        return "too often now: going on without it" in job[name].output

    job.wait_for(is_given_up, 60.0, f"{name}'s supervisor to be given up")


def test_ranks_of_a_node_that_is_cut_off_and_has_no_supervisor_are_gone_before_the_next_attempt(job: Job) -> None:
    """Long: a lease has to end, which nobody but the launcher sees."""
    job.start(2, ["head", "node1", "node2"], spares=1, config=CONFIG + "[fleet]\nlost_s = 15\nterm_s = 14\n")
    job.wait_until_tied("node1")
    [rank] = job["node1"].ranks()
    job.lab.cut(job["node1"].host)
    job.happens('"type":"node_silent"')
    give_up_supervisor(job, "node1")
    gone_s = job.gone([rank.pid], 30.0, "node1's rank")
    job.says("node1", "the supervisor does not answer; node1 has had no contact with the head for 1")
    first = job.first_steps(1, 2)
    assert [mark["node"] for mark in first] == ["head", "node2"]
    assert all(mark["at_s"] > gone_s for mark in first)
    job.lab.restore(job["node1"].host)
    job.says("head", "node1 is back")
    assert job.finish() == {"head": 0, "node1": 0, "node2": 0}


def test_ranks_of_a_node_without_a_supervisor_go_on_where_nothing_is_cut(job: Job) -> None:
    """Long: so long that the lease would be over three times."""
    job.start(2, ["head", "node1"])
    job.wait_until_tied("node1")
    give_up_supervisor(job, "node1")
    job.says("head", "contact with node1 lost")
    began_s = job.at()["at_s"]
    job.wait_for(lambda: job.at(1)["at_s"] > began_s + LONG_S, 60.0, "node1 to go on")
    assert set(job.finish().values()) == {0}
    assert job.at(1)["attempt"] == 0 and not job.incidents()
    job.says("node1", "starting the supervisor again, to tell the head how this node's ranks have ended")


def test_a_rank_that_fails_on_a_node_without_a_supervisor_is_seen_by_the_head(job: Job) -> None:
    """Long: its supervisor has to be given up, and the node to train on, before another tells how the rank ended."""
    job.start(2, ["head", "node1"], config=CONFIG + "[fleet]\nlost_s = 60\nterm_s = 30\n")
    job.wait_until_tied("node1")
    give_up_supervisor(job, "node1")
    began_s = job.at()["at_s"]
    job.wait_for(lambda: job.at(1)["at_s"] > began_s + DROPPED_S + 3.0, 30.0, "node1 to be seen to train on")
    kill(job["node1"].ranks()[0])
    assert job.where(1, 2) == ["head", "node1"]
    told = job.mended(1, attempt=1)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("killed", ["node1"])
    assert set(job.finish().values()) == {0}


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
