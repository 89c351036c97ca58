"""FSDP2 with replicas on several nodes: ranks of whichever node save a part each before the ranks are ended.

Each node holds all shards: a rank of the head's dies, and then the other node is lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet_runs.jobs import QUICK, Job, go
from tests.runs.runs import QUICK as SOON
from tests.runs.runs import RESUME, SCRIPTS, check_replay

pytestmark = pytest.mark.real("netns")

PATIENT = SOON.replace("floor_s = 2\n", "floor_s = 10\n")
"""A rank that blocks as its node is about to be lost is not to be found before that."""
CONFIG = f"{RESUME}jit_s = 30\n{PATIENT}{QUICK[QUICK.index('[fleet]') :]}"
STEPS, KILLED, LOST = 14, 9, 12
RANKS = range(4)


def test_no_step_is_done_twice(job: Job) -> None:
    """Long: three starts of four ranks on two nodes, and one that is lost."""
    job.script = SCRIPTS / "in_time.py"
    script_args = ["--shards=2", f"--fault=kill@{KILLED}:0", f"--fault=lose@{LOST}:3"]
    script_args += ["--again", f"--steps={STEPS}", "--first-save=5"]
    names = ["head", "node1", "node2"]
    job.start(2, names, "--nproc-per-node=2", spares=1, config=CONFIG, script_args=script_args)
    go(job, 0, len(RANKS))
    go(job, 1, len(RANKS))
    job.wait_for((job.folder / "lose-1").exists, 60.0, "a node to be lost")
    job["node1"].host.crash()
    assert (job["head"].wait(), job["node2"].wait()) == (0, 0), job.outputs()
    check_replay(job.run_dir)

    incidents = job.incidents()
    saved = [incident["evidence"]["jit"] for incident in incidents]
    ranks, steps = [one.get("ranks") for one in saved], [one.get("step") for one in saved]
    assert (ranks, steps) == ([[2, 3], [0, 1]], [KILLED - 1, LOST - 1]), (saved, job.outputs())
    resumed = [Path(incident["resumed_from"]["path"]).name for incident in incidents]
    assert resumed == [f"jit_{at - 1}_shard0_of_2.pt" for at in (KILLED, LOST)]
    for rank in RANKS:
        lines = {
            name: (job.folder / f"{name}-{rank}").read_text().split("\n")[:-1] for name in ("losses", "undisturbed")
        }
        losses, undisturbed = ([line.split()[1:] for line in lines[name]] for name in ("losses", "undisturbed"))
        assert losses == undisturbed and len(losses) == STEPS, rank
