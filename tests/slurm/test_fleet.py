"""A job of several nodes under Slurm that an administrator drains nodes of, and that its user cancels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_runs.jobs import QUICK
from tests.fleet_runs.training import SCRIPT, Training
from tests.runs.runs import check_replay
from tests.slurm.programs import GUARDCTL, GUARDRUN
from tests.support.processes import is_alive
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

PATIENCE_S = 60.0
"""For a program that has to be imported first, on a busy machine."""


class SlurmJob(Training):
    """Submitted as users do: guardctl sbatch, one rank a node."""

    def __init__(self, lab: SlurmLab, folder: Path, nodes: int, spares: int) -> None:
        super().__init__(folder)
        (self.folder / "guardrun.toml").write_text(QUICK)
        flags = (f"--nodes={nodes}", f"--spares={spares}", "--nproc-per-node=1", "--cpus-per-task=1", "--json")
        script = (SCRIPT, "--marks", self.marks)
        environment = {"PATH": f"{GUARDRUN.parent}:/usr/bin:/bin"}
        submit = ("sbatch", *flags, "--submit", "--", *script)
        done = lab.run(GUARDCTL, *submit, env=environment, cwd=self.folder, timeout_s=PATIENCE_S)
        self.number = str(json.loads(done.stdout)["job"])
        self._lab = lab

    def outputs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("*.out"))

    def says(self, words: str, timeout_s: float = 30.0) -> None:
        self.wait_for(lambda: words in self.outputs(), timeout_s, f"the job to say {words!r}")

    def status(self) -> dict[str, Any]:
        """guardctl slurm status."""
        done = self._lab.run(GUARDCTL, "slurm", "status", self.number, "--json", cwd=self.folder, timeout_s=PATIENCE_S)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def left(self, node: str) -> list[str]:
        """What of the job is still alive on a node."""
        names = ("guardrun", SCRIPT.name)
        return [one.command for one in self._lab.processes_of(node) if any(name in one.command for name in names)]


@pytest.mark.timeout(300)
def test_a_drain_in_mid_run_and_scancel(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: Slurm looks at its nodes and jobs every few seconds."""
    job = SlurmJob(slurm_lab, tmp_path, nodes=2, spares=2)
    first = job.first_steps(0, 2)
    assert [mark["node"] for mark in first] == ["n1", "n2"]

    # One that trains, and the first spare: who trains there does not feel it.
    slurm_lab.drain("n2", "maintenance, ask ops")
    slurm_lab.drain("n3", "a fan, ask ops")
    job.advance(20)
    assert all(is_alive(mark["pid"]) for mark in first)
    assert not job.incidents()
    told = job.status()
    [seen] = told["jobs"]
    assert seen["run"]["training_on"] == ["n1", "n2"] and told["drained_by_guardrun"] == {}
    reasons = {node["node"]: node["reason"] for node in seen["nodes"]}
    assert reasons == {"n1": "", "n2": "maintenance, ask ops", "n3": "a fan, ask ops", "n4": ""}

    # Then it dies, and guardrun would drain it, too. Whom nobody has drained takes its place.
    slurm_lab.kill_node("n2")
    lost = job.incident(1)
    assert (lost["cause"], lost["action"]) == ("node_lost", "isolate_node")
    assert [(one["rank"], one["node"]) for one in lost["culprits"]] == [(1, "n2")]
    second = job.first_steps(1, 2)
    assert [mark["node"] for mark in second] == ["n1", "n4"]
    job.mended(1, attempt=1)
    job.says("n3 is drained (a fan, ask ops; root): it takes a place only where no other node can")
    job.says("n2 is out of service already, and not by guardrun: ")

    slurm_lab.run("scancel", job.number)
    ended = slurm_lab.wait_state(job.number, "CANCELLED", timeout_s=60)
    for node in ("n1", "n3", "n4"):
        wait_until(lambda node=node: not job.left(node), 30.0, f"{node} to be empty", every_s=0.1)
    assert not any(is_alive(mark["pid"]) for mark in (*first, *second))
    assert (ended["Restarts"], slurm_lab.job(job.number)["JobState"]) == ("0", "CANCELLED")
    summary = json.loads((job.run_dir / "summary.json").read_text())
    assert (summary["outcome"], summary["restarts"], len(summary["incidents"])) == ("interrupted", 1, 1)
    for node, why in (("n2", "maintenance, ask ops"), ("n3", "a fan, ask ops")):
        assert slurm_lab.node(node)["Reason"] == why and "DRAIN" in slurm_lab.node(node)["State"]
    check_replay(job.run_dir)
