"""Nodes of a job under Slurm that do not run for a while: frozen one by one, or suspended together by the scheduler."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import pytest

from tests.fleet_runs.jobs import QUICK, kill
from tests.fleet_runs.training import SCRIPT, Mark, Training
from tests.support.processes import is_alive
from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

CONFIG = QUICK.replace("lost_s = 8\nterm_s = 5\nisolate_lost_s = 8", "lost_s = 20\nterm_s = 8\nisolate_lost_s = 120")


class Step(Training):
    """Two nodes, and perhaps spares."""

    def __init__(self, lab: SlurmLab, folder: Path, spares: int) -> None:
        super().__init__(folder)
        assert CONFIG != QUICK
        (self.folder / "guardrun.toml").write_text(CONFIG)
        self._lab = lab
        guardrun = f"{lab.programs}/guardrun --nproc-per-node=1 --guard-spares={spares} {SCRIPT} --marks {self.marks}"
        step = f"srun --no-kill --kill-on-bad-exit=0 --wait=0 {guardrun}"
        self.job = lab.submit(step, f"-N{2 + spares}", f"-wn[1-{2 + spares}]", cwd=self.folder)
        self.first: list[Mark] = self.first_steps(0, 2)
        self.wait_until_tied("n2")

    def outputs(self) -> str:
        return self._lab.output(self.job)

    def freeze(self, node: str) -> None:
        """Nothing of the job runs there, but for Slurm's own: this one takes a node for dead after ten seconds."""
        self._send(node, signal.SIGSTOP)

    def thaw(self, node: str) -> None:
        self._send(node, signal.SIGCONT)

    def _send(self, node: str, signum: signal.Signals) -> None:
        for process in self._lab.processes_of(node):
            if "slurm" not in process.command.split()[0]:
                with contextlib.suppress(ProcessLookupError):  # A look's py-spy ends whenever it is through.
                    kill(process, signum)

    def trains_on(self) -> None:
        """On the same nodes, in the same processes."""
        self.in_touch("n2")
        self.advance(10)
        assert all(is_alive(mark["pid"]) for mark in self.first), self.outputs()
        assert not self.incidents(), self.outputs()

    def end(self) -> None:
        (self.marks / "end").touch()
        ended = self._lab.wait_state(self.job, "COMPLETED", "FAILED", timeout_s=60.0)
        assert ended["JobState"] == "COMPLETED", self.outputs()


@pytest.mark.timeout(600)
def test_a_node_that_is_frozen_is_not_drained(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: a node that is frozen for less than it may be silent, and for more."""
    step = Step(slurm_lab, tmp_path, spares=1)
    step.freeze("n2")
    time.sleep(9.0)  # Beyond its lease, and short of being lost.
    step.thaw("n2")
    step.trains_on()

    step.freeze("n2")
    lost = step.incident(1)
    assert (lost["cause"], lost["action"]) == ("node_lost", "isolate_node")
    assert step.where(1, 2) == ["n1", "n3"]
    step.thaw("n2")
    step.wait_for(lambda: step.incidents()[0]["action"] == "restart", 30.0, "n2 to be back")
    step.freeze("n3")
    assert step.incident(2)["cause"] == "node_lost"
    assert step.where(2, 2) == ["n1", "n2"], "it is the next spare"
    step.thaw("n3")
    step.wait_for(lambda: step.incidents()[1]["action"] == "restart", 30.0, "n3 to be back")
    step.end()
    assert [slurm_lab.node(name)["Reason"] for name in ("n2", "n3")] == ["", ""]


@pytest.mark.timeout(600)
def test_a_job_that_is_suspended_trains_on_where_it_was(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: it is suspended for longer than any lease lasts, and a node may be silent."""
    step = Step(slurm_lab, tmp_path, spares=0)
    slurm_lab.run("scontrol", "suspend", step.job)
    slurm_lab.wait_state(step.job, "SUSPENDED", timeout_s=20.0)
    wait_until(lambda: stands(step), 20.0, "the ranks to stand still")
    time.sleep(26.0)
    slurm_lab.run("scontrol", "resume", step.job)
    step.trains_on()
    step.end()


def stands(step: Step) -> bool:
    """Whether no rank runs."""
    states = [Path(f"/proc/{mark['pid']}/stat").read_text().rpartition(")")[2].split()[0] for mark in step.first]
    return set(states) == {"T"}
