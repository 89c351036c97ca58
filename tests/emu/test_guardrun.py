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


def test_a_pipeline_whose_first_stage_does_not_send_has_its_root_there(
    start_guardrun: Callable[..., GuardrunRun], library: Path
) -> None:
    """Each stage waits in a receive from the one before: innocent ones were ended for it."""
    arguments = ["--nproc-per-node=3", str(SCRIPT), "--layout", "pipeline", "--steps", "100000"]
    fault = ["--fault", "never_issues", "--rank", "0", "--at", "30"]
    run = start_guardrun([*arguments, *fault], config=PATIENCE, env=dict(QUICK))
    run.wait_for_output("in fetch_batch (train.py:")
    said = run.stdout + run.stderr
    assert "stall: Rank 0 on " in said and "2 ranks wait for it in irecv." in said


def test_a_pipeline_whose_devices_are_at_work_is_left_alone(
    run_guardrun: Callable[..., Finished], library: Path
) -> None:
    """A kernel of eight seconds a step, after steps that took none: all have issued, and nothing gets on for long."""
    arguments = ["--nproc-per-node=3", str(SCRIPT), "--layout", "pipeline", "--steps", "2", "--kernel-s", "8"]
    finished = run_guardrun(arguments, config=PATIENCE, env=dict(QUICK))
    assert finished.returncode == 0, finished
    assert finished.incidents == []
