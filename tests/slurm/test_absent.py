"""A node of the step is under quarantine: who has to do without it knows at once, as nobody starts it again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from guardrun.launcher.base.terminal_lines import QUARANTINED
from tests.fleet_runs.training import SCRIPT, Training
from tests.slurm.programs import GUARDCTL
from tests.support.slurmlab import SlurmLab

pytestmark = pytest.mark.real("slurm")

CONFIG = """
[fleet]
last_call_s = 300
join_timeout_s = 300
"""
"""Nothing here may come of patience that has ended."""


class Step(Training):
    """On n1 and those after it."""

    def __init__(self, lab: SlurmLab, folder: Path, nodes: int, spares: int) -> None:
        super().__init__(folder)
        (self.folder / "guardrun.toml").write_text(CONFIG)
        lab.run(GUARDCTL, "node", "isolate", "n2", "--reason=a fan", env={"SLURMD_NODENAME": "n2"})
        flags = f"--nproc-per-node=1 --guard-spares={spares} --guard-run-id=one"
        self._lab = lab
        guardrun = f"{lab.programs}/guardrun {flags} {SCRIPT} --marks {self.marks}"
        self.job = lab.submit(
            f"srun --no-kill --kill-on-bad-exit=0 --wait=0 {guardrun}",
            f"-N{nodes + spares}",
            f"-wn[1-{nodes + spares}]",
            cwd=self.folder,
        )

    def outputs(self) -> str:
        return self._lab.output(self.job)


@pytest.mark.timeout(240)
def test_without_a_spare_the_run_ends(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long on a busy machine: two launchers import torch, and the one that is left waits for the other."""
    began_s = time.monotonic()
    step = Step(slurm_lab, tmp_path, nodes=2, spares=0)
    ended = slurm_lab.wait_state(step.job, "FAILED", timeout_s=180.0)
    assert time.monotonic() - began_s < 180.0, "nodes that may come are waited for longer"
    assert ended["ExitCode"] == f"{QUARANTINED}:0", step.outputs()
    assert "guardrun: n1 takes no part" not in step.outputs()
    assert "guardrun: n2 takes no part: node n2 is quarantined since " in step.outputs()
    [path] = step.folder.glob("guardrun-runs/one/summary.json")
    summary = json.loads(path.read_text())
    assert summary["outcome"] == "interrupted"
    assert summary["reason"].startswith("too few nodes: 1 of 2 nodes; not with them: n2 (node n2 is quarantined")
    assert not list(step.folder.glob("guardrun-runs/.join*"))


@pytest.mark.timeout(240)
def test_a_spare_takes_its_place_at_once(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long on a busy machine: four nodes' processes are started by Slurm, and import torch."""
    step = Step(slurm_lab, tmp_path, nodes=2, spares=1)
    assert step.where(0, 2) == ["n1", "n3"]
    (step.marks / "end").touch()
    slurm_lab.wait_state(step.job, "COMPLETED", "FAILED", timeout_s=60.0)
    summary = json.loads((step.folder / "guardrun-runs" / "one" / "summary.json").read_text())
    assert summary["outcome"] == "finished", step.outputs()
