"""Links that are cut one way, spares that are dead when they are needed, jobs that shrink and grow."""

from __future__ import annotations

import re

import pytest

from tests.fleet_runs.jobs import QUICK, Job, kill, note_death

pytestmark = [pytest.mark.real("netns"), pytest.mark.timeout(600)]


def lost(job: Job, number: int, node: str, rank: int) -> dict[str, object]:
    """The run's incident of that number is this node's loss."""
    told = job.incident(number)
    assert (told["kind"], told["cause"], told["action"]) == ("node", "node_lost", "isolate_node"), told
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(rank, node)]
    assert told["summary"].startswith(f"{node} and its rank {rank} cannot be reached")
    return told


def test_cut_one_way_then_the_other(job: Job) -> None:
    """It is not heard, with a spare that is dead; then its place's next node hears nothing. Who is back is a spare.

    Then it is the head that is cut off, from all of them: that is nobody's fault, and whoever is heard first goes on.
    """
    job.start(2, ["head", "node1", "node2", "node3"], spares=2)
    job.first_steps(0, 2)
    job.advance(15)
    death = note_death(job["node1"].ranks()[0].pid)
    job["node2"].host.crash()
    job.lab.cut_one_way(job["node1"].host, "out")
    lost(job, 1, "node1", 1)
    gone_s = job.died(death, "node1's rank")
    first = job.first_steps(1, 2)
    assert [mark["node"] for mark in first] == ["head", "node3"]
    assert all(mark["at_s"] > gone_s for mark in first)
    job.mended(1, attempt=1)
    job.lab.restore(job["node1"].host)
    job.says("head", "node1 is back")

    job.advance(15)
    death = note_death(job["node3"].ranks()[0].pid)
    job.lab.cut_one_way(job["node3"].host, "in")
    lost(job, 2, "node3", 1)
    gone_s = job.died(death, "node3's rank")
    first = job.first_steps(2, 2)
    assert [mark["node"] for mark in first] == ["head", "node1"]
    assert all(mark["at_s"] > gone_s for mark in first)
    job.mended(2, attempt=2)
    job.lab.restore(job["node3"].host)
    job.says("head", "node3 is back")

    job.advance(15)
    job.lab.cut(job["head"].host)
    told = job.incident(3)
    assert (told["cause"], told["culprits"], told["action"]) == ("node_lost", [], "restart")
    assert told["summary"].startswith("The head (head) can reach none of its 2 other nodes (node1, node3)")
    job.lab.restore(job["head"].host)
    [spare] = {"node1", "node3"} - {*job.where(3, 2)}
    job.mended(3, attempt=3)
    job.wait_for(lambda: job["head"].output.count(f"{spare} is back") == 2, 30.0, f"{spare} to be back")
    # A spare that is cut off does not hear of the run's end: it sees it.
    job.lab.cut(job[spare].host)
    codes = job.finish()
    assert {name: codes[name] for name in ("head", "node1", "node3")} == {"head": 0, "node1": 0, "node3": 0}
    job.says(spare, "the head (head) has ended the run while it could not be heard here: ending, too")


def test_a_job_shrinks_grows_and_ends_without_its_head(job: Job) -> None:
    """Long: leases end, one after the other."""
    job.start("1:2", ["head", "node1"], config=QUICK + "head_gone_s = 3\n")
    assert job.where(0, 2) == ["head", "node1"]
    job.advance(15)
    death = note_death(job["node1"].ranks()[0].pid)
    job.lab.cut(job["node1"].host)
    kill(job["node1"].supervisor())  # the next one has never had contact, and is bound by the lease all the same
    lost(job, 1, "node1", 1)
    gone_s = job.died(death, "node1's rank")
    [first] = job.first_steps(1, 1)
    assert first["node"] == "head"
    assert first["at_s"] > gone_s
    job.mended(1, attempt=1)
    job.lab.restore(job["node1"].host)
    job.says("head", "node1 is back")
    job.advance(5)
    kill(job["head"].ranks()[0])
    assert job.where(2, 2) == ["head", "node1"]
    job.mended(2, attempt=2)

    # A head that does not come back: nobody is left who might write a checkpoint beside the next start's.
    [rank] = job["node1"].ranks()
    job["head"].host.crash()
    job.gone([rank.pid], 20.0, "node1's rank")
    assert job.ended()["node1"] == 1
    assert job["node1"].output.count("the head has not been heard for") == 1
    assert re.search(r"the head has not been heard for \d+ s: ending here$", job["node1"].output, re.MULTILINE)
