"""`guardctl sbatch`: the script, held against golden files; what doesn't fit; submitted to a real Slurm.

A golden file that is to change is written anew by GUARDRUN_ACCEPT_GOLDEN=1; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from guardrun.slurm.batch.job_fit import remarks_on
from guardrun.slurm.batch.script import JobWish, ScriptError, read_template, render
from guardrun.slurm.client.nodes import SlurmPartition, parse_time
from tests.slurm.batch.partition import NODES, PARTITION
from tests.support.real import find_program
from tests.support.slurmlab import SlurmLab

GOLDEN = Path(__file__).with_name("golden")
ACCEPT = "GUARDRUN_ACCEPT_GOLDEN"
WISHES = {
    "plain": JobWish(command=("train.py",)),
    "spares": JobWish(
        command=("--guard-checkpoint-dir", "out", "train.py", "--name", "it's a b"),
        nodes=30,
        spares=2,
        ranks="8",
        name="llm",
        guardrun="/opt/my env/bin/guardrun",
        options={"gpus-per-node": "h100:8", "time": "2-00:00:00", "partition": "gpu", "exclude": "n7,n9"},
    ),
    "other": JobWish(
        command=("-m", "pkg.train"),
        nodes=4,
        ranks="2",
        options={
            "time": None,
            "signal": None,
            "exclusive": None,
            "cpus-per-task": "16",
            "requeue": None,
            "no-requeue": "",
            "array": "1-4%2",
            "output": "%x-%A_%a.out",
            "comment": 'a "b" \\ c',
        },
    ),
}


@pytest.mark.parametrize("name", WISHES)
def test_the_script_is_as_before(name: str) -> None:
    path = GOLDEN / f"{name}.sbatch"
    text = render(WISHES[name], read_template())
    if os.environ.get(ACCEPT):
        path.write_text(text)
    assert text == path.read_text(), f"{ACCEPT}=1 writes it anew"
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_template_itself_is_a_script_to_copy() -> None:
    subprocess.run(["bash", "-n"], input=read_template(), text=True, check=True)


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "a\x1bb"])
def test_what_cannot_stand_in_a_script_is_refused(bad: str) -> None:
    for wish in (JobWish(command=(bad,)), JobWish(command=("x",), options={"comment": bad}), JobWish(("x",), name=bad)):
        with pytest.raises(ScriptError):
            render(wish, read_template())


# What doesn't fit ------------------------------------------------------------------------------------------------


def test_a_partition_is_read() -> None:
    assert SlurmPartition("gpu", True, True, 4, None, 86400.0, 30.0, "REQUEUE") == PARTITION


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("UNLIMITED", None),
        ("", None),
    ],
)
def test_times(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds


def test_a_job_that_fits_leaves_nothing_to_say() -> None:
    calm = PARTITION._replace(grace_s=120.0)
    wish = JobWish(("x",), nodes=2, spares=1, ranks="8", options={"gpus-per-node": "8", "time": "2:00:00"})
    assert remarks_on(wish, calm, NODES) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time": "1:00:00", "signal": None}, "a time limit without --signal"),
        ({"signal": "B:USR1@300"}, "goes to the batch script alone"),
        ({"signal": "USR2@7200", "time": "1:00:00"}, "at its start"),
        ({"signal": "USR2@20"}, "may be too little for a checkpoint"),
        ({"signal": "what ever"}, "expected NAME@SECONDS"),
        ({"ntasks-per-node": "8"}, "one of it a node is needed"),
        ({"ntasks": "24"}, "one task a node is needed, 3 in all"),
        ({"no-kill": None}, "the first node that fails ends the whole job"),
        ({"kill-on-bad-exit": ""}, "would end the others"),
        ({"requeue": None, "no-requeue": ""}, "nobody starts the job again"),
        ({"open-mode": "truncate"}, "throws the output so far away"),
        ({"gpus-per-node": "4"}, "8 ranks a node, but 4 GPUs"),
        ({"gpus-per-node": "16"}, "no node of partition gpu has more than 8"),
        ({"exclusive": None}, "may get a single CPU"),
        ({"time": "2-00:00:00"}, "more than partition gpu allows"),
        ({}, "30 s of grace"),
    ],
)
def test_what_does_not_fit_is_said(options: Mapping[str, str | None], says: str) -> None:
    said = remarks_on(JobWish(("x",), nodes=2, spares=1, ranks="8", options=options), PARTITION, NODES)
    assert any(says in remark for remark in said), said


@pytest.mark.parametrize(
    ("nodes", "spares", "excluded", "says"),
    [
        (1, 2, [], "more wait than work"),
        (4, 1, [], "4 + 1 spares = 5 nodes, and partition gpu has 4: the job would never start"),
        (3, 1, [], "only 3 of partition gpu are in service now"),
        (3, 1, ["n1"], "1 are quarantined: the job would wait"),
    ],
)
def test_more_nodes_than_there_are(nodes: int, spares: int, excluded: list[str], says: str) -> None:
    said = remarks_on(JobWish(("x",), nodes=nodes, spares=spares), PARTITION, NODES, excluded)
    assert any(says in remark for remark in said), said


# In a real Slurm -------------------------------------------------------------------------------------------------


def guardctl(lab: SlurmLab, *arguments: str, cwd: Path, is_checked: bool = True, **env: str) -> Any:
    program = find_program("guardctl")
    assert program is not None
    done = lab.run(program, *arguments, cwd=cwd, is_checked=is_checked, env=env)
    return done


@pytest.mark.real("slurm")
def test_a_job_is_submitted_without_the_quarantined_and_nothing_of_the_job_around_it(
    slurm_lab: SlurmLab, tmp_path: Path
) -> None:
    """Long on a busy machine: a real Slurm, and Pythons that it starts."""
    shared = {"GUARDRUN_NODE_SHARED_DIR": str(tmp_path / "shared"), "GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "shared").mkdir()
    (tmp_path / "train.py").touch()
    guardctl(slurm_lab, "node", "isolate", "n2", "--reason", "bad fan", cwd=tmp_path, **shared)
    guardctl(slurm_lab, "node", "isolate", "elsewhere", cwd=tmp_path, **shared)  # Slurm takes no name it does not know
    inside = {"SLURM_JOB_ID": "9999", "SLURM_STEP_ID": "3", "SLURM_NODEID": "7", "SBATCH_ACCOUNT": "kept"}
    flags = ("sbatch", "--nodes", "2", "--spares", "1", "--time", "1:00:00", "--sbatch=--hold", "--json", "--submit")
    done = guardctl(slurm_lab, *flags, "--", "train.py", cwd=tmp_path, **shared, **inside)
    answer = json.loads(done.stdout)
    assert answer["excluded"] == ["n2"]
    assert answer["warnings"] == [
        "jobs of partition main may be preempted with 10 s of grace (GraceTime): that may be too little for a"
        " checkpoint, so save often"
    ]
    job = slurm_lab.job(answer["job"])
    assert (job["JobState"], job["ExcNodeList"], job["NumNodes"], job["JobName"]) == ("PENDING", "n2", "3-3", "train")
    assert (job["WorkDir"], job["Requeue"], job["Account"]) == (str(tmp_path), "1", "kept")
    kept = slurm_lab.run("scontrol", "write", "batch_script", answer["job"], "-").stdout
    assert kept.strip() == answer["script"].strip()


@pytest.mark.real("slurm")
def test_a_written_script_is_what_sbatch_takes(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    written = tmp_path / "job.sbatch"
    flags = ("--nodes=3", "--cpus-per-task=2", "--time=10", "--sbatch=--comment=a b", "--write", "job.sbatch")
    done = guardctl(slurm_lab, "sbatch", *flags, "--", "train.py", cwd=tmp_path)
    assert "submit it with sbatch job.sbatch" in done.stdout
    say = Path(__file__).parents[1] / "say_here.py"
    text = written.read_text()
    assert f"GUARDRUN={find_program('guardrun')}\n" in text
    stub = tmp_path / "stub"
    stub.write_text(f'#!/bin/sh\necho "$SLURMD_NODENAME: $*"\nexec {sys.executable} {say} 3\n')
    stub.chmod(0o755)
    written.write_text(text.replace(f"GUARDRUN={find_program('guardrun')}", f"GUARDRUN={stub}"))
    job = slurm_lab.run("sbatch", "--parsable", written, cwd=tmp_path).stdout.strip()
    slurm_lab.wait_state(job, "COMPLETED")
    output = (tmp_path / f"train-{job}.out").read_text()
    given = (
        f"--nnodes=3 --guard-spares=0 --nproc-per-node=auto --guard-run-id=slurm-{job} "
        "--guard-preemption-requeue=time_limit train.py"
    )
    assert all(f"n{index}: {given}" in output for index in (1, 2, 3))
    said = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(said) == 3 and all(one["refusal"] == "" for one in said)


@pytest.mark.real("slurm")
def test_a_refusal_of_sbatch_is_one_sentence(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    done = guardctl(
        slurm_lab, "sbatch", "--partition=nowhere", "--submit", "--", "x.py", cwd=tmp_path, is_checked=False
    )
    assert done.returncode == 1
    assert "there is no partition nowhere; there are: main, urgent" in done.stderr
    assert "the job was not submitted: sbatch: " in done.stderr and "Traceback" not in done.stderr
