"""`guardctl slurm status`: a run is shown beside its own job alone. A stand-in prints what scontrol does."""

from __future__ import annotations

import getpass
import time
from pathlib import Path

import pytest

from guardrun.supervisor.rundir.journal import NAME
from guardrun.supervisor.rundir.run_directory import write_run_file
from tests.cli.conftest import NODE, Ctl, record_journal
from tests.report.samples import run_file
from tests.support.journals import set_version

JOB = (
    "JobId={job} JobName=train UserId={user}(0) GroupId=root(0) JobState=RUNNING Reason=None Restarts=0 "
    "StartTime={start} EndTime=Unknown NodeList={node} BatchHost={node} NumNodes=1 WorkDir={folder}"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two jobs at once on one node, and a third that has no run."""
    programs, folder = tmp_path / "bin", tmp_path / "work"
    programs.mkdir()
    (folder / "guardrun-runs").mkdir(parents=True)
    about = {"user": getpass.getuser(), "start": int(time.time()), "node": NODE, "folder": folder}
    jobs = "\n".join(JOB.format(job=job, **about) for job in (5, 6, 7))
    (programs / "jobs.txt").write_text(jobs + "\n")
    scontrol = programs / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\n[ "$2" = job ] && exec cat {programs}/jobs.txt\necho "NodeName={NODE} State=ALLOCATED"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.chdir(folder)
    return folder


def add_run(folder: Path, run_id: str, slurm_job: str) -> None:
    run_dir = folder / "guardrun-runs" / run_id
    run_dir.mkdir()
    write_run_file(
        run_dir,
        run_file(run_id=run_id, node=NODE, user=getpass.getuser(), created_wall_s=time.time(), slurm_job=slurm_job),
    )


def shown(ctl: Ctl) -> dict[str, str | None]:
    return {job["job"]: job["run"] and job["run"]["run_id"] for job in ctl.json("slurm", "status")["jobs"]}


def test_a_run_is_shown_beside_its_own_job_alone(slurm: Path, ctl: Ctl) -> None:
    add_run(slurm, "first", "5")
    add_run(slurm, "second", "6")
    assert shown(ctl) == {"5": "first", "6": "second", "7": None}


def test_a_run_that_says_nothing_of_a_job_is_known_by_its_time_and_node(slurm: Path, ctl: Ctl) -> None:
    add_run(slurm, "old", "")
    assert shown(ctl) == {"5": "old", "6": "old", "7": "old"}


def test_a_rescue_says_where_a_journal_of_another_version_keeps_the_nodes_to_avoid(
    slurm: Path, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_run(slurm, "first", "5")
    runs = slurm / "guardrun-runs"
    (runs / "first").chmod(0o700)
    record_journal(runs / "first")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    set_version(runs / "first" / NAME, 9)
    ctl("slurm", "rescue", "first", "--guard-dir", str(runs))
    said = "the journal has version 9, and this guardrun reads version 2: which nodes the run did without is not known"
    assert said in ctl.err
