"""One fault after the other in one run: each is told, and the job goes on without what is to blame.

With the times that users get; the other tests of this folder have shorter ones.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_runs.jobs import CONFIG, Job, note_death
from tests.fleet_runs.training import MAX_LOST

pytestmark = [pytest.mark.real("netns"), pytest.mark.timeout(600)]

VERDICT_S = 45.0
"""From a cut: the time that a switch needs to fail over, and by how much a busy machine is late."""
GUARDRUN_S = 15.0
"""From the verdict to the next start: leases that have to end. What ranks take to start is the script's."""


def guardctl(job: Job, *words: str, on: str = "head") -> str:
    return job[on].host.run(str(Path(sys.executable).with_name("guardctl")), *words)


def between(job: Job, earlier: str, later: str, attempt: int) -> float:
    """Seconds of the head's journal from one action of an attempt's to another of the next one's."""
    times = {
        (action["type"], action.get("attempt")): line["t"]
        for line in job.events()
        for action in line.get("actions", [])
    }
    return float(times[later, attempt + 1] - times[earlier, attempt])


def test_a_blocked_rank_a_cut_link_and_a_dead_node(job: Job) -> None:
    """Long: three faults in one run, each with the patience that users get."""
    job.start(3, ["head", "node1", "node2", "node3", "node4"], spares=2, config=CONFIG)
    assert job.where(0, 3) == ["head", "node1", "node2"]
    job.advance(20)
    run = str(job.run_dir)
    status = ["status", "--json", run]

    def as_much_of_all() -> list[dict[str, Any]]:
        """Once a node has reported for a second, as much is known of its ranks as of the head's own."""
        ranks: list[dict[str, Any]] = json.loads(guardctl(job, *status))["ranks"]
        known = [{key for key, value in rank.items() if value is not None} for rank in ranks]
        needed = {"step_time_s", "last_beat_s", "last_progress_s", "data_share", "gc_share"}
        return ranks if known and all(needed <= of_one and known[0] <= of_one for of_one in known) else []

    ranks = job.wait_for(as_much_of_all, 10.0, "as much to be known of all ranks")
    assert {rank["global_rank"]: rank["node"] for rank in ranks} == {0: "head", 1: "node1", 2: "node2"}

    def are_in_step() -> bool:
        """In step with each other, they are shown to be: all at one moment, but where the machine is busy just then."""
        ranks = json.loads(guardctl(job, *status))["ranks"]
        return all(rank["age_s"] < 1.0 and abs(rank["step"] - ranks[0]["step"]) <= 3 for rank in ranks)

    job.wait_for(are_in_step, 10.0, "all ranks to be shown at one moment")

    def stacks_show_all() -> bool:
        """A look may miss a rank that runs, and whoever has the GIL just then is said, too."""
        stacks = guardctl(job, "stacks", "--all", "--run", run)
        titles = [rf"^Rank {rank}\b.* on {node}\b" for rank, node in enumerate(["head", "node1", "node2"])]
        return "(train.py:" in stacks and all(re.search(title, stacks, re.MULTILINE) for title in titles)

    job.wait_for(stacks_show_all, 30.0, "the stacks of all nodes' ranks")

    # On a node that does not lead, and without saying which run.
    told = json.loads(guardctl(job, "diagnose", "--guard-dir", str(job.run_dir.parent), "--json", on="node1"))
    assert (told["target"]["run_id"], told["target"]["source"]) == (job.run_dir.name, "supervisor")
    assert [(line["rank"], line["node"]) for line in told["ranks"]] == [(0, "head"), (1, "node1"), (2, "node2")]

    # A script's own fault blames no node.
    job.hang(2)
    told = job.incident(1)
    assert (told["kind"], told["cause"], told["action"]) == ("hang", "rank_blocked", "restart")
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(2, "node2")]
    assert told["summary"].startswith("Rank 2 on node2 has waited ")
    assert "fetch_vocabulary_update (train.py:" in told["summary"]
    assert told["summary"].endswith("; 2 ranks wait for it in all_reduce.")
    stacks = " ".join(
        path.read_text() for path in (job.run_dir / "incidents").glob("001-*/stacks/**/*") if path.is_file()
    )
    assert stacks.count("all_reduce") >= 2
    assert "fetch_vocabulary_update" in stacks
    first = job.first_steps(1, 3)
    assert [mark["node"] for mark in first] == ["head", "node1", "node2"]
    assert told["step"] - first[0]["from"] <= MAX_LOST
    assert between(job, "stop_attempt", "start_attempt", 0) < 30.0
    job.advance(30)
    assert job.recovered(1)["resumed_from"]["step"] == first[0]["from"]

    # No word from node1, and none to it: its rank ends by itself before anything goes on without it.
    [rank] = job["node1"].ranks()
    death = note_death(rank.pid)
    job.lab.cut(job["node1"].host)
    cut_s = time.monotonic()
    told = job.incident(2, VERDICT_S + 10.0)
    assert time.monotonic() - cut_s < VERDICT_S
    assert (told["kind"], told["cause"], told["action"]) == ("node", "node_lost", "isolate_node")
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(1, "node1")]
    assert re.match(
        r"node1 and its rank 1 cannot be reached: nothing has been heard of it for (2[5-9]|3\d) s", told["summary"]
    )
    gone_s = job.died(death, "the cut node's rank")
    first = job.first_steps(2, 3)
    assert [mark["node"] for mark in first] == ["head", "node3", "node2"]
    assert all(mark["at_s"] > gone_s for mark in first)
    assert between(job, "stop_attempt", "start_attempt", 1) < GUARDRUN_S
    assert not job["node1"].ranks()
    job.advance(30)
    job.mended(2, attempt=2)

    # All of guardrun and everything below it on node2; node1 is there again by then, and next in turn.
    job.lab.restore(job["node1"].host)
    job.says("head", "node1 is back: it waits for the next attempt")
    job["node2"].host.crash()
    told = job.incident(3)
    assert (told["cause"], told["action"]) == ("node_lost", "isolate_node")
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(2, "node2")]
    assert "its connection was closed" in told["summary"]
    assert job.where(3, 3) == ["head", "node3", "node1"]
    job.mended(3, attempt=3)
    assert not job["node2"].processes()
    assert not job["node4"].ranks()

    codes = job.finish()
    assert codes | {"node2": 0} == dict.fromkeys(codes, 0)
    assert [one["cause"] for one in job.summary()["incidents"]] == ["rank_blocked", "node_lost", "node_lost"]
    assert job.summary()["exit_code"] == 0
    shares = job.summary()["shares"]
    assert set(shares["ranks"]) == {"0", "1", "2"} and "not_told" not in shares, "of all nodes that trained last"
