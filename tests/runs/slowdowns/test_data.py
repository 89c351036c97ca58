"""Data that does not come: stopped and dead workers, a mount that does not answer; and which batch an exception met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.runs import QUICK, RESUME, EdgeRuns, finish, ranks_of
from tests.support.deadmount import dead_mount
from tests.support.guardrun_run import Finished

pytestmark = [pytest.mark.real("py-spy"), pytest.mark.real("fuse")]

PLAN = "0:worker_stop@15:1,1:worker_kill@25:1,2:read@35:0"
CASES = [
    (1, "dataloader_stall", r"waited \d+ s for data: its DataLoader worker \d+ is stopped by a signal"),
    (1, "dataloader_stall", r"waited \d+ s for data: its DataLoader worker \d+ has died"),
    (0, "io_blocked", r"been in uninterruptible wait for \d+ s in .*, on \S+dead, which does not answer"),
]


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    runs = EdgeRuns(tmp_path_factory.mktemp("starved"))
    dead = tmp_path_factory.mktemp("elsewhere") / "dead"
    dead.mkdir()
    try:
        with dead_mount(dead):
            arguments = ["--plan", PLAN, "--loader", "--read", str(dead / "shard"), "--steps", "50"]
            yield finish(runs.start("train.py", *arguments, config=RESUME + QUICK), 150)
    finally:
        runs.close()


@pytest.mark.parametrize("number", range(len(CASES)), ids=["stopped worker", "dead worker", "dead mount"])
def test_the_sentence_says_why_no_data_comes(starved: Finished, number: int) -> None:
    rank, cause, words = CASES[number]
    incident = starved.incidents[number]
    assert (incident["kind"], incident["cause"], incident["action"]) == ("hang", cause, "restart")
    assert ranks_of(incident) == [rank]
    assert re.search(words, incident["summary"]), incident["summary"]


def test_the_evidence_has_the_workers_and_the_node(starved: Finished) -> None:
    stopped, died, blocked = (incident["evidence"] for incident in starved.incidents)
    assert [worker["standing"] for worker in stopped["workers"]] == ["stopped"]
    assert [(worker["standing"], worker["state"]) for worker in died["workers"]] == [("dead", "Z")]
    names = {reading["name"] for reading in blocked["readings"]}
    assert {"load", "memory available", "processes in uninterruptible wait"} <= names
    odd = [Path(reading["name"]) for reading in blocked["readings"] if "has not answered" in reading["note"]]
    # Other tests may have dead mounts on this host at the same time.
    assert [path.name for path in odd if path.parent.name.startswith("elsewhere")] == ["dead"]


def test_training_goes_on_to_its_end(starved: Finished) -> None:
    assert starved.returncode == 0, starved
    assert len(starved.incidents) == 3
    assert all(incident["recovered"] for incident in starved.incidents)
