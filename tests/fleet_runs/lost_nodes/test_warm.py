"""A spare has imported what ranks import before it is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fleet_runs.jobs import QUICK, Job, kill
from tests.support.forkserver.program import other_name

pytestmark = pytest.mark.real("netns")

CONFIG = QUICK + '[launcher]\nwarm = "auto"\nwarm_free_mb = 0\n'


def log_of(job: Job, node: str) -> list[dict[str, Any]]:
    """guardrun.log of a node that does not lead."""
    found = [path for path in job.folder.rglob("guardrun.log") if node in path.parent.name]
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


@pytest.mark.timeout(300)
def test_the_ranks_of_a_spare_that_steps_in_are_forked(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long on a busy machine: ranks and warm processes import torch, as their Pythons are executed."""
    monkeypatch.setenv("PYTHON_EXEC", other_name())
    job.start(2, ["head", "node1", "node2"], spares=1, config=CONFIG)
    assert job.where(0, 2) == ["head", "node1"]
    job.wait_for(
        lambda: any(line["event"] == "warm_ready" for line in log_of(job, "node2")), 60, "the spare to be warm"
    )
    kill(job["node1"].launcher())
    assert job.where(1, 2) == ["head", "node2"]
    codes = job.finish()
    assert (codes["head"], codes["node2"]) == (0, 0)
    [begun] = [line for line in log_of(job, "node2") if line["event"] == "warm_ranks_started"]
    assert len(begun["pids"]) == 1
    assert not [line for line in log_of(job, "node2") if line["event"] == "warm_given_up"]
