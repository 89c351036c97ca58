"""A restart of two nodes that takes up what is there, or does not: whoever opens it, on whichever node."""

from __future__ import annotations

import pytest

from tests.fleet_runs.jobs import QUICK, Job
from tests.runs.runs import SCRIPTS

pytestmark = pytest.mark.real("netns")

UNSAID = QUICK.replace('resume_args = ["--resume", "{path}"]\n', "")


def begin(job: Job, *arguments: str) -> None:
    job.script = SCRIPTS / "anew.py"
    job.start(2, ["head", "node1"], config=UNSAID, script_args=["--step-s=0.05", *arguments])


def saved(job: Job) -> tuple[int, int]:
    """Step and attempt of the only checkpoint."""
    import torch  # not where this file is only collected: it takes more than a second

    state = torch.load(job.folder / "out" / "ckpt.pt")
    return state["step"], state["attempt"]


def test_it_is_ended_on_all_nodes_before_it_writes_over_it(job: Job) -> None:
    """Long: two starts of two nodes."""
    begin(job, "--takes=never", "--steps=400")
    assert [job[name].wait() for name in ("head", "node1")] == [1, 1], job.outputs()
    assert saved(job) == (20, 0)
    job.says("head", "giving up: the script began anew beside")
    assert "done" not in job.outputs()


def test_one_that_another_node_s_rank_takes_up_is_resumed(job: Job) -> None:
    """Long: rank 0 saves over what only rank 1, elsewhere, has opened; it is kept waiting for a moment, and no more."""
    begin(job, "--takes=rank1", "--steps=60")
    assert [job[name].wait() for name in ("head", "node1")] == [0, 0], job.outputs()
    assert "attempt 1 rank 1: starts at step 20" in job.outputs()
    assert saved(job) == (60, 1)
