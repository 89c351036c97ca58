"""Guardruns that are stopped, as Ctrl-Z does it: training goes on where it can, and nobody waits for them where not."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.fleet_runs.jobs import Job, kill, note_death
from tests.support.processes import is_alive

pytestmark = pytest.mark.real("netns")


def test_a_node_and_then_the_head_are_stopped(job: Job) -> None:
    """Long: contact is lost, and leases end, one after the other."""
    job.start(2, ["head", "node1", "node2"], spares=1)
    ranks = [mark["pid"] for mark in job.first_steps(0, 2)]
    job.wait_until_tied("node1")

    # Its guardrun and its supervisor: only contact is lost. The supervisor comes back, the launcher does not.
    launcher, supervisor = job["node1"].launcher(), job["node1"].supervisor()
    for process in (launcher, supervisor):
        kill(process, signal.SIGSTOP)
    job.says("head", "contact with node1 lost for ")
    job.advance(5)
    guardctl = str(Path(sys.executable).with_name("guardctl"))
    status = json.loads(job["head"].host.run(guardctl, "status", "--json", str(job.run_dir)))
    [node] = [one for one in status["nodes"] if one["node"] == "node1"]
    assert (node["standing"], node["contact_lost"]) == ("silent", 1)
    assert node["why"] == "contact is lost; its training goes on"
    kill(supervisor, signal.SIGCONT)
    job.says("head", "contact with node1 is back, after ")
    assert all(map(is_alive, ranks))
    assert not job.incidents()

    # Now the others' attempt ends: its deputy does what its launcher would.
    death = note_death(ranks[1])
    kill(job["head"].ranks()[0])
    gone_s = job.died(death, "node1's rank")
    first = job.first_steps(1, 2)
    assert [mark["node"] for mark in first] == ["head", "node2"]
    assert all(mark["at_s"] > gone_s for mark in first)
    job.says("head", "node1 is lost, too: its guardrun is stopped (SIGSTOP, or Ctrl-Z), and did not obey")
    assert "ending them without it" in job["node1"].output
    told = job.mended(1, attempt=1)
    assert (told["cause"], [one["node"] for one in told["culprits"]]) == ("killed", ["head"])
    kill(launcher, signal.SIGCONT)
    job.says("head", "node1 is back: it waits for the next attempt")

    # The head's, likewise; as coordinator it goes on.
    head = job["head"].launcher()
    kill(head, signal.SIGSTOP)  # SIGTSTP is for who has a shell: the kernel ignores it elsewhere
    kill(job["node2"].ranks()[0])
    assert job.where(2, 2) == ["node1", "node2"]
    assert not job["head"].ranks()
    job.advance(5)
    kill(head, signal.SIGCONT)
    job.says("head", "head is back: it waits for the next attempt")
    assert job.finish() == {"head": 0, "node1": 0, "node2": 0}
    assert [one["cause"] for one in job.summary()["incidents"]] == ["killed", "killed"]
    assert json.dumps(job.events()).count('"node_left"') == 2
