"""Nodes that are slow while the others wait for them, without a reason and with one that their sensors tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_runs.jobs import QUICK, Job, flags, kill
from tests.sensors.nvml_stub import NvmlStub, build_library

pytestmark = [pytest.mark.real("netns"), pytest.mark.real("cc")]

CONFIG = f"""{QUICK}
[slowdown]
window_s = 3
[policy.responses]
thermal_throttle = "isolate"
"""
KNOWN_S = 25.0
"""After so long a run's usual pace is known: warm-up, and three windows."""


def caused(job: Job, cause: str) -> list[dict[str, Any]]:
    return [incident for incident in job.incidents() if incident["cause"] == cause]


def trained_s(job: Job, since_s: float) -> bool:
    return bool(job.at()["at_s"] - since_s > KNOWN_S)


@pytest.mark.timeout(600)
def test_a_straggler_and_a_node_that_throttles(job: Job, tmp_path: Path) -> None:
    """Long: what is usual is learned first, and each slowness has to last to be believed."""
    stub = NvmlStub(build_library(tmp_path / "nvml"), tmp_path / "readings")
    stub.set(gpus=1)
    (job.folder / "guardrun.toml").write_text(CONFIG)
    for number, name in enumerate(("head", "node1", "node2")):
        job.start_one(name, *flags(number, 3, 1), env={**stub.variables} if name == "node1" else None)
    first = job.first_steps(0, 3)
    job.start_one("node3", *flags(3, 3, 1))  # Earlier, it might have come before another.
    stub.set(gpu=0, processes=f"{first[1]['pid']}=512000000")
    job.wait_for(lambda: trained_s(job, first[0]["at_s"]), 60.0, "the run to be known")

    # For a reason that no sensor tells: said, and nothing done.
    slow = job.marks / "slow-2"
    slow.touch()
    job.wait_for(lambda: caused(job, "straggler"), 40.0, "the straggler")
    slow.unlink()
    [straggler] = caused(job, "straggler")
    assert (straggler["kind"], straggler["action"]) == ("slowdown", "none")
    assert [(one["rank"], one["node"]) for one in straggler["culprits"]] == [(2, "node2")]
    assert straggler["summary"].startswith("Rank 2 on node2 has become slow: "), straggler["summary"]
    job.wait_for(lambda: caused(job, "straggler")[0]["recovered"], 40.0, "node2 to be well again")

    # Another, whose device throttles: it is named, and kept from what comes.
    slow = job.marks / "slow-1"
    stub.set(gpu=0, reasons="hw_slowdown,hw_thermal", temperature=91, sm_clock=990)
    slow.touch()
    job.wait_for(lambda: caused(job, "thermal_throttle"), 40.0, "the throttling device")
    [throttle] = caused(job, "thermal_throttle")
    assert throttle["action"] == "isolate_node", throttle
    assert [(one["rank"], one["node"], one["gpu"]) for one in throttle["culprits"]] == [(1, "node1", 0)]
    assert re.match(r"Rank 1 on node1: GPU 0 .*; steps have taken [1-4]\.\d times as long", throttle["summary"])
    record = job.state_of("node1") / "quarantine.json"
    job.wait_for(record.exists, 10.0, "node1 to keep it on record")
    assert [mark["pid"] for mark in (job.at(rank) for rank in range(3))] == [mark["pid"] for mark in first]

    # What comes: a restart, which is made without it.
    kill(job["head"].ranks()[0])
    assert job.where(1, 3) == ["head", "node3", "node2"]
    assert set(job.finish().values()) == {0}
