"""guardrun over a job on the emulated device: it reads the recorder, and leaves a healthy job alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.hooks.wire.board import Field
from guardrun.supervisor.collect.ranks.boards import BoardReader, open_boards
from guardrun.supervisor.rundir.run_directory import read_run_file
from tests.emu.ranks import LIGHT, SCRIPT
from tests.support import scenes
from tests.support.guardrun_run import Finished, GuardrunRun
from tests.support.waiting import wait_until

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
    finished = run_guardrun(arguments, config=PATIENCE, env=dict(LIGHT))
    assert finished.returncode == 0, finished
    assert finished.incidents == []


def test_who_has_not_issued_is_named_while_its_peer_s_host_is_far_ahead(
    start_guardrun: Callable[..., GuardrunRun], library: Path
) -> None:
    """Rank 0 waits for its loss, in no call of torch.distributed: only the recorder tells for whom.

    That was read, by servers that looks had asked for: so torch's own timeout may be raised.
    """
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--steps", "100000", "--fault", "never_issues", "--at", "60"]
    run = start_guardrun(arguments, config=PATIENCE, env=dict(LIGHT))
    run.wait_for_output("rank 0 waits for it in all_reduce.")
    said = run.stdout + run.stderr
    assert "in fetch_batch (train.py:" in said
    assert "blind" not in said
    scenes.check("devices that wait", "guardctl status", run.guardctl("status"), run.folder)
    assert run.run_dir is not None
    boards = open_boards(read_run_file(run.run_dir).socket_dir, 0, range(2))
    for board in boards.values():

        def shows(board: BoardReader = board) -> bool:  # another look may be reading at this moment
            words = board.read()
            assert words is not None
            return (words[Field.SERVER_GIVEN], words[Field.TIMEOUT_RAISED], words[Field.READING_NS]) == (1, 1, 0)

        wait_until(shows, 60, "a recorder that was read, and a timeout that was raised")
        board.close()


def test_where_nobody_can_read_it_nobody_is_named_for_being_alike(
    start_guardrun: Callable[..., GuardrunRun], library: Path
) -> None:
    """A device stands still, both hosts wait, and torch has no watchdog: it says that it is blind, and waits."""
    arguments = ["--nproc-per-node=2", str(SCRIPT), "--steps", "100000", "--fault", "dead_link", "--at", "60"]
    env = {**LIGHT, "TORCH_NCCL_BLOCKING_WAIT": "1"}
    run = start_guardrun(arguments, config=PATIENCE, env=env)
    run.wait_for_output("blind: what the devices of rank 0-1 do can't be read (torch waits for NCCL by itself")
    assert re.search(r"guardrun acts in 5\d\d s", run.stdout + run.stderr), "not 12, as this configuration has it"
    assert run.incidents() == []


def test_a_pipeline_whose_first_stage_does_not_send_has_its_root_there(
    start_guardrun: Callable[..., GuardrunRun], library: Path
) -> None:
    """Each stage waits in a receive from the one before: innocent ones were ended for it."""
    arguments = ["--nproc-per-node=3", str(SCRIPT), "--layout", "pipeline", "--steps", "100000"]
    fault = ["--fault", "never_issues", "--rank", "0", "--at", "30"]
    run = start_guardrun([*arguments, *fault], config=PATIENCE, env=dict(LIGHT))
    run.wait_for_output("2 ranks wait for it in irecv.")
    said = run.stdout + run.stderr
    assert "stall: Rank 0 on " in said and "in fetch_batch (train.py:" in said


def test_a_pipeline_whose_devices_are_at_work_is_left_alone(
    run_guardrun: Callable[..., Finished], library: Path
) -> None:
    """A kernel of eight seconds a step, after steps that took none: all have issued, and nothing gets on for long."""
    arguments = ["--nproc-per-node=3", str(SCRIPT), "--layout", "pipeline", "--steps", "2", "--kernel-s", "8"]
    finished = run_guardrun(arguments, config=PATIENCE, env=dict(LIGHT))
    assert finished.returncode == 0, finished
    assert finished.incidents == []
