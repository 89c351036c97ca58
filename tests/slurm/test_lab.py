"""The lab itself: a Slurm of four nodes, which die and come back."""

from __future__ import annotations

import pytest

from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")


def test_a_job_runs_on_its_nodes_and_a_killed_one_leaves_nothing_behind(slurm_lab: SlurmLab) -> None:
    job = slurm_lab.submit("srun --no-kill bash -c 'echo on $SLURMD_NODENAME; exec sleep 600'", "-N3", "--no-kill")
    assert slurm_lab.wait_state(job, "RUNNING")["NodeList"] == "n[1-3]"
    wait_until(lambda: sorted(slurm_lab.output(job).split()) == ["n1", "n2", "n3", "on", "on", "on"], 10, "its output")
    assert any("sleep 600" in process.command for process in slurm_lab.processes_of("n2"))

    slurm_lab.kill_node("n2")

    assert slurm_lab.processes_of("n2") == []
    assert any("sleep 600" in process.command for process in slurm_lab.processes_of("n3"))


def test_a_drained_node_keeps_its_reason_until_it_is_resumed(slurm_lab: SlurmLab) -> None:
    slurm_lab.drain("n4", "a reason: of several words = one")
    slurm_lab.wait_node("n4", "DRAIN")
    assert slurm_lab.node("n4")["Reason"] == "a reason: of several words = one"
    slurm_lab.resume("n4")
    slurm_lab.wait_node("n4", "IDLE")
