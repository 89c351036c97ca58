"""Ranks of two nodes that are killed, or lost, in the middle of an epoch: each sample comes once, on whichever node.

The spare takes the place of the node that is lost. The fourth attempt has a function for save_with().
"""

from __future__ import annotations

import json

import pytest

from tests.fleet_runs.jobs import QUICK, Job
from tests.runs.runs import SCRIPTS
from tests.runs.samples import trained, undisturbed

pytestmark = pytest.mark.real("netns")

NAMES = ("head", "node1", "node2")
SAMPLES, EPOCHS = 160, 3
KILLS = "5:1,13:0,,44:0"
"""STEP:RANK of each attempt; the third loses a node once …"""
LOST_ATTEMPT, LOST_SAVED, LOST_AT = 2, 24, 27
"""… step LOST_SAVED was saved, the last before LOST_AT, at which its ranks wait."""
EXACT = QUICK.replace('resume_args = ["--resume", "{path}"]\n', "exact_data = true\n")


def saved_by_both(job: Job, attempt: int) -> int:
    """The last step of an attempt that was saved, and of which the head knows what both ranks had been handed."""
    path = job.run_dir / "data-ledger.json"
    saves = json.loads(path.read_bytes()) if path.exists() else []
    own = [save for save in saves if save["attempt"] == attempt and save["loaders"]]
    return max((save["step"] for save in own if {*save["loaders"][0]["ranks"]} == {"0", "1"}), default=-1)


def test_each_sample_comes_once(job: Job) -> None:
    """Long: five starts of two nodes, and one that is lost."""
    job.script = SCRIPTS / "once.py"
    script_args = (
        f"--samples={SAMPLES}",
        f"--epochs={EPOCHS}",
        f"--kills={KILLS}",
        f"--hold=,,{LOST_AT}",
        "--workers=0,1",
        "--step-s=0.05",
    )
    job.start(2, NAMES, config=EXACT, spares=1, script_args=script_args)
    # Of what the lost node had not told by then nothing is known, and nothing would be skipped.
    job.wait_for(lambda: saved_by_both(job, LOST_ATTEMPT) == LOST_SAVED, 60.0, f"an account of step {LOST_SAVED}")
    job["node1"].host.crash()
    assert (job["head"].wait(), job["node2"].wait()) == (0, 0), job.outputs()
    for rank in (0, 1):
        assert trained(job.folder, rank) == undisturbed(rank, SAMPLES, EPOCHS)
    told = [one["data_replay"]["status"] for one in job.summary()["attempts"] if "data_replay" in one]
    assert told == ["skipped"] * 4, job.outputs()
    assert job.incidents()[-1]["evidence"]["jit"]["step"] == 44


def test_each_sample_comes_once_after_snapshots(job: Job) -> None:
    """Both ranks are killed, and nothing else was saved: what is resumed from was in both nodes' memory."""
    job.script = SCRIPTS / "once.py"
    arguments = (
        "--samples=80",
        "--epochs=2",
        "--kills=6:-1,13:-1",
        "--save-every=1000",
        "--everything",
        "--step-s=0.3",
    )
    config = EXACT.replace("exact_data", "jit_s = 0\nsnapshot_steps = 1\nexact_data")
    job.start(2, NAMES[:2], config=config, script_args=arguments)
    assert job.ended() == {"head": 0, "node1": 0}, job.outputs()
    for rank in (0, 1):
        assert trained(job.folder, rank) == undisturbed(rank, 80, 2)
    snapshots = [incident["evidence"]["snapshot"] for incident in job.incidents()]
    assert all(one["path"] and not one.get("why") for one in snapshots) and len(snapshots) == 2, snapshots
    told = [one["data_replay"]["status"] for one in job.summary()["attempts"] if "data_replay" in one]
    assert told == ["skipped"] * 2, job.outputs()
