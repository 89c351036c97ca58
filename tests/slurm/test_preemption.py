"""A job that Slurm is about to end: it saves, is requeued, and goes on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.runs import check_dates, check_replay
from tests.support.slurmlab import SlurmLab
from tests.support.slurmlab_conf import LabSettings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

SCRIPT = Path(__file__).parents[1] / "runs" / "scripts" / "plain.py"
CONFIG = (
    '[checkpoint]\ndir = "out"\nresume_args = ["--resume", "{path}"]\n'
    '[restart]\nstop_grace_s = 1\n[preemption]\nrequeue = "time_limit"\n'
)
STEP_S = 0.02
LIMIT_S = 90
"""Half of it has to be enough for the ranks to start, the other half for them to save, on a busy machine too."""
NEVER_SAVES_S = 55
"""Of a job that has nothing to save: guardrun has to have begun by then, its ranks need not."""


@pytest.fixture(scope="module")
def groups_lab() -> Iterator[SlurmLab]:
    """Slurm that signals a task's process group: as with control groups, the ranks don't get what guardrun gets."""
    lab = SlurmLab(LabSettings(nodes=1, kill_wait_s=30, grace_s=30, extra={"ProctrackType": "proctrack/pgid"}))
    try:
        yield lab
    finally:
        lab.close()


def submit(
    lab: SlurmLab,
    folder: Path,
    *flags: str,
    nodes: int = 1,
    first: str = "",
    then: str = "",
    asked: str = "save",
    config: str = CONFIG,
) -> str:
    """Two ranks that train until there is a file `enough`, and save when they are asked.

    first, then: of the batch script, around srun; asked: what being asked leads to, empty: to nothing.
    """
    (folder / "guardrun.toml").write_text(config)
    guardrun = f"{lab.programs}/guardrun --guard-run-id=job-$SLURM_JOB_ID --nproc-per-node={2 // nodes}"
    steps = "$([ -e enough ] && echo 1 || echo 100000)"
    script = f"srun -n{nodes} {guardrun} {SCRIPT} --save-every=0 --step-s={STEP_S} --asked={asked} --steps={steps}"
    return lab.submit(
        f"{first}\n{script}\n{then}" if then else f"{first}\nexec {script}",
        f"-N{nodes}",
        f"-n{nodes}",
        "--requeue",
        *flags,
        cwd=folder,
    )


def wait_for_training(lab: SlurmLab, job: str, folder: Path, starts: int = 1) -> None:
    def trains() -> bool:
        return len(re.findall("rank 1: starts at step", lab.output(job))) >= starts

    wait_until(trains, 60, "the ranks to start", every_s=0.1)
    journal = folder / "guardrun-runs" / f"job-{job}" / "events.jsonl"
    wait_until(lambda: '"milestones"' in journal.read_text(), 20, "the first steps", every_s=0.1)


def record(folder: Path, job: str, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "guardrun-runs" / f"job-{job}" / name).read_text())
    return loaded


def check_requeued(lab: SlurmLab, job: str, folder: Path) -> dict[str, Any]:
    """It has saved, is requeued, and ends well from there; answers the incident."""
    (folder / "enough").touch()
    # Slurm may look at who is to be preempted a minute later, where it was at something else.
    wait_until(lambda: lab.job(job).get("Restarts") == "1", 180, f"the requeue of {lab.job(job)}", every_s=0.1)
    assert lab.wait_state(job, "COMPLETED", "FAILED", timeout_s=90)["JobState"] == "COMPLETED", lab.output(job)
    first = record(folder, job, "summary.0.json")
    assert (first["outcome"], first["restarts"]) == ("preempted", 0)
    assert record(folder, job, "summary.json")["outcome"] == "finished"
    [incident] = sorted((folder / "guardrun-runs" / f"job-{job}" / "incidents").iterdir())
    told: dict[str, Any] = json.loads((incident / "incident.json").read_text())
    assert told["kind"] == "preemption" and told["evidence"]["in_time"] is True, told
    step = told["evidence"]["checkpoint"]["step"]
    assert f"rank 0: starts at step {step} " in lab.output(job)
    check_replay(folder / "guardrun-runs" / f"job-{job}")
    check_dates(folder / "guardrun-runs" / f"job-{job}")
    return told


def test_a_warning_that_meets_every_process(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """As `#SBATCH --signal=USR1@180` sends it; the lab's Slurm sends it to the ranks, too."""
    job = submit(slurm_lab, tmp_path)
    wait_for_training(slurm_lab, job, tmp_path)
    slurm_lab.run("scancel", "--signal=USR1", job)
    check_requeued(slurm_lab, job, tmp_path)


def test_a_preemption_with_a_grace_time(groups_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: Slurm preempts, waits for the grace time, and requeues."""
    job = submit(groups_lab, tmp_path)
    wait_for_training(groups_lab, job, tmp_path)
    urgent = groups_lab.submit("sleep 3", "-N1", "-n1", "--exclusive", "--partition=urgent")
    told = check_requeued(groups_lab, job, tmp_path)
    assert groups_lab.job(urgent)["JobState"] == "COMPLETED"
    assert (told["cause"], told["evidence"]["scheduler"]) == ("signal", "preempted")


def test_a_time_limit_of_a_job_of_two_nodes(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm counts limits in minutes, but takes an end to the second. A job so short is asked to save halfway."""
    shorter = f"[ $SLURM_RESTART_COUNT ] || scontrol update jobid=$SLURM_JOB_ID endtime=now+{LIMIT_S}"
    job = submit(slurm_lab, tmp_path, "--time=2", "--open-mode=append", nodes=2, first=shorter)
    wait_for_training(slurm_lab, job, tmp_path)
    assert slurm_lab.job(job)["NodeList"] == "n[1-2]"
    told = check_requeued(slurm_lab, job, tmp_path)
    assert (told["cause"], told["action"], told["evidence"]["requeued"]) == ("time_limit", "restart", True)
    saved = dict(re.findall(r"rank (\d): saves at step (\d+)", slurm_lab.output(job)))
    assert saved == dict.fromkeys("01", str(told["evidence"]["checkpoint"]["step"])), "all at one and the same step"
    lost = told["step"] - told["evidence"]["checkpoint"]["step"]
    assert 0 <= lost < 10 / STEP_S, "what was trained between the save and the stop"
    for node in ("n1", "n2"):
        assert not [one for one in slurm_lab.processes_of(node) if "guardrun" in one.command]


def test_a_time_limit_of_a_job_that_never_saves_is_the_end_of_going_round(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Long: it is requeued once, for a first time proves nothing, and has its time twice."""
    shorter = f"scontrol update jobid=$SLURM_JOB_ID endtime=now+{NEVER_SAVES_S}"
    once = CONFIG.replace("[restart]", "[restart]\nmax_no_progress = 1")
    job = submit(slurm_lab, tmp_path, "--time=1", "--open-mode=append", first=shorter, asked="", config=once)
    slurm_lab.wait_state(job, "FAILED", "TIMEOUT", "CANCELLED", timeout_s=240)
    said = slurm_lab.output(job)
    assert slurm_lab.job(job)["Restarts"] == "1", said
    assert said.count("the job is not requeued: 1 requeues in a row got no further and saved nothing") == 1, said
    for name in ("summary.0.json", "summary.json"):
        ended = record(tmp_path, job, name)
        assert (ended["outcome"], ended["reason"], ended["restarts"]) == ("preempted", "time limit", 0)
    check_replay(tmp_path / "guardrun-runs" / f"job-{job}")


@pytest.mark.parametrize("of_step", [False, True], ids=["of the job", "of the step"])
def test_scancel_requeues_nothing(groups_lab: SlurmLab, tmp_path: Path, of_step: bool) -> None:
    """Slurm says of a job whose step alone is to end that it runs: whoever sent that wants the run to end."""
    job = submit(groups_lab, tmp_path)
    wait_for_training(groups_lab, job, tmp_path)
    groups_lab.run("scancel", *(["--signal=TERM", f"{job}.0"] if of_step else [job]))
    # The script of a job whose step has ended ends with srun's status: it is guardrun's.
    ended = groups_lab.wait_state(job, "FAILED" if of_step else "CANCELLED")
    wait_until((tmp_path / f"guardrun-runs/job-{job}/summary.json").exists, 20, "the run's end")
    assert record(tmp_path, job, "summary.json")["outcome"] == "interrupted"
    assert not of_step or ended["ExitCode"] == "143:0"
    assert groups_lab.job(job)["Restarts"] == "0"
    assert "Root Cause" not in groups_lab.output(job)


def test_scancel_of_a_step_without_a_signal_kills_it_at_once(groups_lab: SlurmLab, tmp_path: Path) -> None:
    """Nobody has time for a word, and nothing of it lives on; what is left of the job is the batch script's affair."""
    job = submit(groups_lab, tmp_path, then="echo srun ended with $?; until [ -e enough ]; do sleep 0.1; done")
    wait_for_training(groups_lab, job, tmp_path)
    groups_lab.run("scancel", f"{job}.0")
    wait_until(lambda: "srun ended with 137" in groups_lab.output(job), 20, "the step's end", every_s=0.1)

    def is_quiet() -> bool:
        return not [one for one in groups_lab.processes_of("n1") if "guardrun" in one.command]

    wait_until(is_quiet, 30, "the end of guardrun, its supervisor and its ranks", every_s=0.1)
    (tmp_path / "enough").touch()
    assert groups_lab.wait_state(job, "COMPLETED")["Restarts"] == "0"
    assert not (tmp_path / f"guardrun-runs/job-{job}/summary.json").exists()
