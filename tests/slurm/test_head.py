"""The head's node dies, the batch script with it: another node has Slurm start the job again, and the run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from examples.demo.on_slurm import HERE, last_step
from guardrun.supervisor.fleet.follower.orphaned_job import may_rescue
from guardrun.supervisor.rundir.run_directory import RunFile, read_run_file
from tests.slurm.programs import QUICKER
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

STEPS = 150


def run_file(command: list[str], requeue: str) -> RunFile:
    from types import SimpleNamespace

    made: Any = SimpleNamespace(command=command, settings=SimpleNamespace(requeue=requeue))
    found: RunFile = made
    return found


@pytest.mark.parametrize(
    ("command", "requeue", "environ", "may"),
    [
        (["--guard-run-id=slurm-5", "x.py"], "auto", {"SLURM_JOB_ID": "5"}, True),
        (["x.py"], "auto", {"SLURM_JOB_ID": "5", "GUARDRUN_RUN_ID": "a"}, True),
        (["x.py"], "auto", {"SLURM_JOB_ID": "5"}, False),
        (["x.py"], "always", {"SLURM_JOB_ID": "5"}, True),
        (["--guard-run-id", "a", "x.py"], "never", {"SLURM_JOB_ID": "5"}, False),
        (["--guard-run-id", "a", "x.py"], "always", {}, False),
    ],
)
def test_only_a_run_that_would_be_continued_is_requeued(
    command: list[str], requeue: str, environ: dict[str, str], may: bool
) -> None:
    assert may_rescue(run_file(command, requeue), environ) is may


@pytest.mark.real("slurm")
@pytest.mark.timeout(400)
def test_the_job_goes_on_without_the_node_of_its_head(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: Slurm gives a node up after its own time-out, and requeues no sooner than it likes."""
    for name in ("train.py", "guardrun.toml"):
        shutil.copy(HERE / name, tmp_path)
    environment = {**QUICKER, "GUARDRUN_FLEET_HEAD_GONE_S": "5", "PATH": f"{slurm_lab.programs}:/usr/bin:/bin"}
    flags = ("--nodes=2", "--spares=1", "--nproc-per-node=1", "--cpus-per-task=1", "--json", "--submit")
    script = ("train.py", f"--steps={STEPS}", "--save-every=10", "--update-at=0", "--batch-size=4", "--width=32")
    done = slurm_lab.run(*slurm_lab.guardctl, "sbatch", *flags, "--", *script, env=environment, cwd=tmp_path)
    job = str(json.loads(done.stdout)["job"])
    wait_until(lambda: last_step(tmp_path) >= 15, 120, "training on two nodes", every_s=0.1)

    slurm_lab.kill_node("n1")

    before = last_step(tmp_path)
    assert before < STEPS
    again = slurm_lab.wait_state(job, "COMPLETED", "FAILED", timeout_s=300)
    assert (again["JobState"], again["Restarts"]) == ("COMPLETED", "1"), slurm_lab.run("cat", *tmp_path.glob("*.out"))
    assert again["NodeList"] == "n[2-4]"
    [run_dir] = [path for path in (tmp_path / "guardrun-runs").iterdir() if path.name == f"slurm-{job}"]
    assert read_run_file(run_dir).session == 1
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["outcome"], summary["last_step"]) == ("finished", STEPS)
    assert "guardrun: starting attempt 1: resuming from" in (tmp_path / f"train-{job}.out").read_text()
