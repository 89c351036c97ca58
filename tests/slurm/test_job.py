"""Jobs of several nodes under a real Slurm, without any rendezvous flag."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.slurmlab import SlurmLab

pytestmark = pytest.mark.real("slurm")

GUARDRUN = Path(sys.executable).with_name("guardrun")
SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "on", os.environ["SLURMD_NODENAME"], "sum", total.item(),
      flush=True)
"""


def test_nodes_that_share_no_folder_are_introduced_by_munge(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Each node keeps its runs where no other looks, so a join file would never be found."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = (
        f"srun -N2 --kill-on-bad-exit=0 sh -c 'GUARDRUN_DIR={tmp_path}/runs-$SLURMD_NODENAME "
        f"exec {GUARDRUN} --guard-join=munge --nproc-per-node=1 {tmp_path}/train.py'"
    )
    job = slurm_lab.submit(command, "-N2", env={"GUARDRUN_FLEET_MUNGE_SOCKET": slurm_lab.munge_socket})
    slurm_lab.wait_state(job, "COMPLETED", timeout_s=90)
    said = slurm_lab.output(job)
    for rank, node in ((0, "n1"), (1, "n2")):
        assert f"rank {rank} of 2 on {node} sum 1.0" in said, said
    assert not list(tmp_path.glob("runs-*/.join-*"))


def test_several_tasks_a_node_are_refused_with_the_way_out(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """By guardrun itself; client/test_steps.py shows that every node of several refuses."""
    (tmp_path / "train.py").write_text(SCRIPT)
    job = slurm_lab.submit(
        f"srun --ntasks=2 --ntasks-per-node=2 {GUARDRUN} --nproc-per-node=1 {tmp_path}/train.py", "-N1", "--overcommit"
    )
    slurm_lab.wait_state(job, "FAILED", timeout_s=60)
    assert "srun --ntasks-per-node=1" in slurm_lab.output(job)


def test_a_head_that_does_not_start_is_not_waited_for_and_speaks_for_all(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """srun is told to let the others go on, as the template of guardctl sbatch has it."""
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = f"--guard-dir={tmp_path}/runs --nproc-per-node=1"
    command = (
        "srun -N2 --kill-on-bad-exit=0 --wait=0 sh -c 'test $SLURM_NODEID = 0 && wrong=--guard-run-id=a/b; "
        f"{GUARDRUN} {flags} $wrong {tmp_path}/train.py; echo node $SLURM_NODEID ends with $?'"
    )
    job = slurm_lab.submit(command, "-N2")
    slurm_lab.wait_state(job, "COMPLETED", timeout_s=60)
    said = slurm_lab.output(job)
    assert "node 0 ends with 2" in said and "node 1 ends with 2" in said, said
    assert said.count("--guard-run-id a/b: expected letters") == 1 and "did not start" not in said
    [log] = tmp_path.glob("runs/.nodes/2*/guardrun.log")
    assert "head_refused" in log.read_text()
