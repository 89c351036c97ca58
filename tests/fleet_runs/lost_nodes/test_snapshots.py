"""Ranks and nodes are killed, nothing was saved, and two intervals of what is kept in memory are done again at most."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet_runs.jobs import QUICK, Job, kill
from tests.support.processes import read_descriptors

pytestmark = pytest.mark.real("netns")

EVERY = 2
SELDOM = 60
"""With mirrors: what is kept has to be at the next node before it is written over, some seconds later here."""


def start(job: Job, how: str, hosts: list[str], *, spares: int = 0, every: int = EVERY, more: str = "") -> None:
    arguments = (f"--keep={how}", "--save-every=1000000", "--out", str(job.folder / "out"))
    config = QUICK.replace("[hang]", f"snapshot_steps = {every}\n{more}[hang]", 1)
    job.start(2, hosts, spares=spares, config=config, script_args=arguments)
    job.first_steps(0, 2)
    job.advance((2 if every == SELDOM else 5) * every)


def mended(job: Job, attempt: int, files: int, every: int = EVERY) -> dict[str, Any]:
    """What became of the copies that an attempt resumes from."""
    marks = job.first_steps(attempt, 2)
    incident = job.recovered(attempt)
    snapshot: dict[str, Any] = incident["evidence"]["snapshot"]
    assert (snapshot["path"], snapshot["step"]) == (incident["resumed_from"]["path"], incident["resumed_from"]["step"])
    assert {mark["from"] for mark in marks} == {snapshot["step"]} and snapshot["files"] == files
    done_again = max(mark["stood"] for mark in marks) - snapshot["step"]
    assert 0 <= done_again <= 2 * every, (marks, snapshot)
    job.advance((2 if every == SELDOM else 5) * every)
    return snapshot


def wait_until_mirrored(job: Job, name: str, attempt: int, rank: int) -> None:
    """Until a node keeps a rank's state of this attempt: a second place is made once the first one is full."""

    def is_kept() -> bool:
        opened = read_descriptors(job[name].supervisor().pid)
        return sum(f"guardrun-mirror-{attempt}-{rank} " in link for link in opened) > 1

    job.wait_for(is_kept, 60.0, f"{name} to keep what rank {rank} has")


def test_of_replicas_two_nodes_keep_a_copy(job: Job) -> None:
    """A rank is killed; the head's copy is gone with its supervisor; the node that has the other copy is lost."""
    start(job, "replicas", ["head", "node1", "node2"], spares=1)
    job.wait_until_tied("node1")
    kill(job["node1"].ranks()[0])
    mended(job, 1, 1)
    [rank] = job["head"].ranks()
    kill(job["head"].supervisor())
    kill(rank)
    mended(job, 2, 1)
    job["node1"].host.crash()
    mended(job, 3, 1)
    assert not [path for path in (job.folder / "out").iterdir() if path.name.startswith(".")]
    assert len(list((job.folder / "out").iterdir())) == 3
    job.finish()


def test_shards_of_a_lost_node_are_written_by_the_next_one(job: Job) -> None:
    """Long: the node is waited for. Then the head's part comes from its mirror, as its supervisor has died."""
    start(job, "shards", ["head", "node1", "node2"], spares=1, every=SELDOM, more="mirror = true\n")
    job.wait_until_tied("node1")
    wait_until_mirrored(job, "head", 0, 1)
    job["node1"].host.crash()
    mended(job, 1, 2, SELDOM)
    wait_until_mirrored(job, "node2", 1, 0)
    [rank] = job["head"].ranks()
    kill(job["head"].supervisor())
    kill(rank)
    mended(job, 2, 2, SELDOM)
    assert not [path for path in (job.folder / "out").iterdir() if path.name.startswith(".")]
    job.finish()


def test_shards_of_all_nodes_are_written(job: Job) -> None:
    """Also where a supervisor was killed before: the next one opens the memory anew."""
    start(job, "shards", ["head", "node1"])
    old = job["node1"].supervisor()
    kill(old)
    job.in_touch("node1")
    job.advance(2 * EVERY)
    kill(job["node1"].ranks()[0])
    mended(job, 1, 2)
    kill(job["head"].ranks()[0])
    mended(job, 2, 2)
    assert set(job.finish().values()) == {0}
