"""guardrun over a job on the emulated device: it reads the recorder, and leaves a healthy job alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emu.ranks import QUICK, SCRIPT
from tests.support.guardrun_run import Finished, GuardrunRun

pytestmark = pytest.mark.real("g++")

PATIENCE = """
[hang]
floor_s = 2
sensitivity = "eager"
scale = 0.1
tell_s = 2
"""


def test_a_healthy_job_is_left_alone(run_guardrun: Callable[..., Finished], library: Path) -> None:
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--steps", "60", "--kernel-s", "0.02"]
    finished = run_guardrun(arguments, config=PATIENCE, env=dict(QUICK))
    assert finished.returncode == 0, finished
    assert finished.incidents == []


def test_who_has_not_issued_is_named_while_its_peer_s_host_is_far_ahead(
    start_guardrun: Callable[..., GuardrunRun], library: Path
) -> None:
    """Rank 0 waits for its loss, in no call of torch.distributed: only the recorder tells for whom."""
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--steps", "100000", "--fault", "never_issues", "--at", "60"]
    run = start_guardrun(arguments, config=PATIENCE, env=dict(QUICK))
    run.wait_for_output("in fetch_batch (train.py:")
    assert "rank 0 waits for it in all_reduce." in run.stdout + run.stderr
