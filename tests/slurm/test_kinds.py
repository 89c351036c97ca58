"""Jobs of every kind that Slurm has: an array, a heterogeneous one, an allocation, several steps in one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_runs.jobs import QUICK
from tests.fleet_runs.training import SCRIPT, Training
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

PATIENCE_S = 60.0
"""For a program that has to be imported first, on a busy machine."""
ITS_OWN = QUICK.replace('dir = "out"\n', "")
"""Checkpoints are where the script is seen to write them."""


class Part(Training):
    """One run of several in a folder. name: of the run; says: what its guardruns have printed."""

    def __init__(self, folder: Path, marks: str, name: str, says: Callable[[], str]) -> None:
        self.folder, self.marks, self._name, self._says = folder, folder / marks, name, says
        self.marks.mkdir(exist_ok=True)

    @property
    def run_dir(self) -> Path:
        return self.folder / "guardrun-runs" / self._name

    def outputs(self) -> str:
        return self._says()

    def hang(self, rank: int) -> None:
        (self.marks / f"hang-{rank}").touch()

    def end(self) -> None:
        (self.marks / "end").touch()

    def starts_again(self, attempt: int, world: int) -> None:
        """After a requeue: wait until its ranks train from a checkpoint."""
        assert all(mark["from"] > 0 for mark in self.first_steps(attempt, world, timeout_s=90.0))

    def summary(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return told


def left(lab: SlurmLab) -> list[str]:
    """What of any job is alive on a node."""
    names = ("guardrun", SCRIPT.name)
    found = [one.command for node in lab.nodes for one in lab.processes_of(node)]
    return [command for command in found if any(name in command for name in names)]


@pytest.mark.timeout(240)
def test_each_task_of_an_array_is_a_run_of_its_own(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Two tasks on the same two nodes: one has a fault, the other is asked to save and starts again."""
    (tmp_path / "guardrun.toml").write_text(ITS_OWN)
    flags = ("--nodes=2", "--nproc-per-node=1", "--cpus-per-task=1", "--array=3,7", "--output=out-%A_%a", "--json")
    script = (SCRIPT, "--marks", f"{tmp_path}/task-$SLURM_ARRAY_TASK_ID", "--out", "out-$SLURM_ARRAY_TASK_ID")
    done = slurm_lab.run(
        *slurm_lab.guardctl, "sbatch", *flags, "--submit", "--", *script,
        env={"PATH": f"{slurm_lab.programs}:/usr/bin:/bin"}, cwd=tmp_path, timeout_s=PATIENCE_S,
    )  # fmt: skip
    job = json.loads(done.stdout)["job"]
    three, seven = (
        Part(tmp_path, f"task-{task}", f"slurm-{job}_{task}", lambda p=tmp_path / f"out-{job}_{task}": p.read_text())
        for task in (3, 7)
    )
    assert three.where(0, 2) == seven.where(0, 2) == ["n1", "n2"]
    three.advance(12)
    three.hang(1)
    told = three.incident(1)
    assert (told["cause"], [one["rank"] for one in told["culprits"]]) == ("rank_blocked", [1])
    three.first_steps(1, 2)
    assert three.mended(1, attempt=1)["resumed_from"]["path"].startswith(f"{tmp_path}/out-3/")

    slurm_lab.run("scancel", "--signal=USR2", f"{job}_7")
    wait_until(lambda: slurm_lab.job(f"{job}_7").get("Restarts") == "1", PATIENCE_S, "the requeue", every_s=0.1)
    seven.starts_again(1, 2)
    assert slurm_lab.job(f"{job}_3")["Restarts"] == "0"
    assert [(one["cause"], one["summary"]) for one in three.incidents()] == [(told["cause"], told["summary"])]
    assert [one["kind"] for one in seven.incidents()] == ["preemption"]

    for task in (three, seven):
        task.end()
    for number in (3, 7):
        slurm_lab.wait_state(f"{job}_{number}", "COMPLETED", timeout_s=PATIENCE_S)
    assert {three.summary()["outcome"], seven.summary()["outcome"]} == {"finished"}
    assert not left(slurm_lab)


HETEROGENEOUS = """#!/bin/bash
#SBATCH -N1 --no-kill --requeue --open-mode=append
#SBATCH hetjob
#SBATCH -N1 --no-kill
srun --het-group=0,1 --no-kill --kill-on-bad-exit=0 --wait=0 \\
    {guardrun} --nproc-per-node=1 --guard-run-id=mixed {script} --marks {marks}
"""


@pytest.mark.timeout(240)
def test_a_run_over_the_components_of_a_heterogeneous_job(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: a hang and its patience. A node each; client/test_steps.py shows how a component of two is counted."""
    (tmp_path / "guardrun.toml").write_text(QUICK)
    text = HETEROGENEOUS.format(guardrun=slurm_lab.programs / "guardrun", script=SCRIPT, marks=tmp_path / "marks")
    job = slurm_lab.submit(text, cwd=tmp_path)
    run = Part(tmp_path, "marks", "mixed", lambda: slurm_lab.output(job))
    assert run.where(0, 2) == ["n1", "n2"]
    run.advance(12)
    run.hang(1)
    told = run.incident(1)
    assert [(one["rank"], one["node"]) for one in told["culprits"]] == [(1, "n2")]
    assert run.where(1, 2) == ["n1", "n2"]
    run.mended(1, attempt=1)

    slurm_lab.run("scancel", "--signal=USR2", job)
    run.starts_again(2, 2)
    run.end()
    slurm_lab.wait_state(job, "COMPLETED", timeout_s=PATIENCE_S)
    assert run.summary()["outcome"] == "finished" and not left(slurm_lab)


@pytest.mark.timeout(360)
def test_an_allocation_has_spares_and_ends_when_there_are_none_left(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: nodes are lost one after the other, each after its time."""
    (tmp_path / "guardrun.toml").write_text(f"{QUICK}join_timeout_s = 30\n")
    step = [
        "srun",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        str(slurm_lab.programs / "guardrun"),
        "--nproc-per-node=1",
    ]
    command = [*step, "--guard-spares=1", str(SCRIPT), "--marks", str(tmp_path / "marks")]
    said = tmp_path / "said"
    with said.open("wb") as file:
        shell = subprocess.Popen(
            ["salloc", "-N3", "--no-kill", *command],
            env=slurm_lab.environment(), cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        run = Part(tmp_path, "marks", "latest", said.read_text)
        first = run.first_steps(0, 2)
        assert [mark["node"] for mark in first] == ["n1", "n2"]
        slurm_lab.kill_node("n2")
        assert run.incident(1)["cause"] == "node_lost"
        assert run.where(1, 2) == ["n1", "n3"]
        run.mended(1, attempt=1)
        run.advance(12)
        slurm_lab.kill_node("n3")
        assert shell.wait(2 * PATIENCE_S) != 0
    finally:
        shell.kill()
        shell.wait()
    assert "too few nodes for 30 s: 1 of 2 nodes; not with them: " in said.read_text()
    assert (run.summary()["outcome"], run.summary()["exit_code"]) == ("interrupted", 1)
    wait_until(lambda: not left(slurm_lab), PATIENCE_S, "nothing to be left", every_s=0.1)


def test_steps_side_by_side_are_runs_of_their_own(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """A step of two nodes and one of another node, in one job."""
    (tmp_path / "guardrun.toml").write_text(ITS_OWN)
    lines = [
        f"srun {where} {slurm_lab.programs}/guardrun --nproc-per-node=1 --guard-run-id={name} {SCRIPT} "
        f"--marks {tmp_path}/{name} --out out-{name}"
        for name, where in (("a", "-N2 -w n1,n2"), ("b", "-N1 -w n3"))
    ]
    job = slurm_lab.submit(" &\n".join(lines) + " &\nwait", "-N3", cwd=tmp_path)
    a, b = (Part(tmp_path, name, name, lambda: slurm_lab.output(job)) for name in "ab")
    assert (a.where(0, 2), b.where(0, 1)) == (["n1", "n2"], ["n3"])
    pids = [mark["pid"] for mark in b.first_steps(0, 1)]
    a.advance(12)
    a.hang(1)
    assert [one["node"] for one in a.incident(1)["culprits"]] == ["n2"]
    a.first_steps(1, 2)
    a.mended(1, attempt=1)
    assert not b.incidents()
    for run in (a, b):
        run.end()
    slurm_lab.wait_state(job, "COMPLETED", timeout_s=PATIENCE_S)
    assert [json.loads(path.read_text())["pid"] for path in sorted((tmp_path / "b").glob("at-*"))] == pids
    assert (a.summary()["outcome"], b.summary()["outcome"]) == ("finished", "finished")
