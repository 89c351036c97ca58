"""What the real Slurm's steps look like: srun in and out of sbatch, salloc, arrays, heterogeneous jobs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.slurmlab import SlurmLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("slurm")

SAY = f"{sys.executable} {Path(__file__).parents[1] / 'say_here.py'}"


def read_lines(text: str) -> list[dict[str, Any]]:
    """What say_here printed, in the order of the nodes."""
    said = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return sorted(said, key=lambda one: (one["here"]["job"], one["here"]["node_id"], one["here"]["local_id"]))


def test_sbatch_with_and_without_srun_and_a_smaller_step(slurm_lab: SlurmLab) -> None:
    script = f"{SAY} 3; echo; srun {SAY} 3; srun -N2 -r1 {SAY} 3; srun --ntasks-per-node=2 --overcommit {SAY}"
    job = slurm_lab.submit(script, "-N3", "--open-mode=append")
    slurm_lab.wait_state(job, "COMPLETED")
    batch, *steps = [json.loads(line) for line in slurm_lab.output(job).splitlines() if line.startswith("{")]

    assert not batch["here"]["is_step"] and batch["here"]["nodes"] == ["n1", "n2", "n3"]
    assert "srun is missing: job" in batch["refusal"] and "only on n1" in batch["refusal"]

    whole = sorted((one for one in steps if one["here"]["step_id"] == "0"), key=lambda one: one["here"]["node_id"])
    assert [one["here"]["node"] for one in whole] == ["n1", "n2", "n3"]
    assert all(one["here"]["nodes"] == ["n1", "n2", "n3"] and one["refusal"] == "" for one in whole)

    smaller = [one for one in steps if one["here"]["step_id"] == "1"]
    assert sorted((one["here"]["node_id"], one["here"]["node"]) for one in smaller) == [(0, "n2"), (1, "n3")]
    assert all("this step has 2 nodes" in one["refusal"] for one in smaller)

    several = [one for one in steps if one["here"]["step_id"] == "2"]
    assert len(several) == 6 and all("srun has started 2 guardrun on n" in one["refusal"] for one in several)


def test_srun_alone_and_salloc(slurm_lab: SlurmLab) -> None:
    alone = read_lines(slurm_lab.run("srun", "-N2", *SAY.split(), "2").stdout)
    assert [(one["here"]["node_id"], one["refusal"]) for one in alone] == [(0, ""), (1, "")]

    shell = slurm_lab.run("salloc", "-N2", "bash", "-c", f"{SAY} 2; srun {SAY} 2").stdout
    outside, *inside = [json.loads(line) for line in shell.splitlines() if line.startswith("{")]
    assert not outside["here"]["is_step"] and outside["here"]["node"] == "" and outside["here"]["node_count"] == 2
    assert "srun is missing" in outside["refusal"] and "on none of the job's nodes" in outside["refusal"]
    assert all(one["here"]["is_step"] and one["refusal"] == "" for one in inside) and len(inside) == 2


def test_an_array_whose_task_goes_by_its_own_name(slurm_lab: SlurmLab) -> None:
    array = slurm_lab.submit(f"srun {SAY}", "-N1", "--array=3,7", "-o", f"{slurm_lab.folder}/array-%a")
    names = [slurm_lab.folder / f"array-{task}" for task in (3, 7)]
    wait_until(lambda: all(name.exists() and name.read_text().endswith("\n") for name in names), 20, "both tasks")
    said = [read_lines(name.read_text())[0]["here"] for name in names]
    assert [one["job"] for one in said] == [f"{array}_3", f"{array}_7"]
    assert array in {one["job_id"] for one in said}  # the array's own number: of a single task, and of all


def test_a_step_over_the_components_of_a_heterogeneous_job(slurm_lab: SlurmLab) -> None:
    # `:` parts the components on srun's own command line, too.
    out = slurm_lab.run("srun", "-N1", *SAY.split(), "3", ":", "-N2", *SAY.split(), "3").stdout
    said = read_lines(out)
    assert [one["here"]["node_id"] for one in said] == [0, 1, 2]
    assert {one["here"]["node_count"] for one in said} == {3}
    assert {tuple(one["here"]["nodes"]) for one in said} == {("n1", "n2", "n3")}
    assert all(one["refusal"] == "" and one["here"]["het_size"] == 2 for one in said)
