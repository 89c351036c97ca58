"""Flags behind `guardctl sbatch … --`, and options of sbatch's, that don't fit: each is said, or made to fit."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from guardrun.launcher.run.command_line import parse_flags
from guardrun.slurm.batch.job_fit import Habits, remarks_on
from guardrun.slurm.batch.script import Given, JobWish, make_parser, read_command, read_template, render
from tests.slurm.batch.partition import NODES, PARTITION
from tests.support.guardrun_run import clean_environment
from tests.support.real import find_program

CALM = PARTITION._replace(grace_s=120.0)


def remarks(*command: str, **fields: Any) -> list[str]:
    return remarks_on(JobWish(command=command, **fields), CALM, NODES)


def test_the_flags_are_those_of_guardrun_and_of_this_torch() -> None:
    """By name, and whether they take a value: else the script would be looked for in the wrong place."""
    import torch.distributed.run as torchrun  # not where this file is only collected: it takes more than a second

    real: list[argparse.ArgumentParser] = []

    def make() -> argparse.ArgumentParser:
        real.append(torchrun.get_args_parser())
        return real[0]

    parse_flags(["x.py"], make)

    def table(parser: argparse.ArgumentParser) -> dict[str, bool]:
        return {name: action.nargs == 0 for action in parser._actions for name in action.option_strings}

    own = table(make_parser())
    theirs = table(real[0])
    assert {name for name, is_switch in theirs.items() if own.get(name, is_switch) is not is_switch} == set()
    assert {name for name in theirs.keys() ^ own.keys() if name.startswith("--guard-")} == set()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train.py --nnodes 4 --guard-dir x", Given(script="train.py", is_file=True)),
        ("--nnodes 4 train.py", Given(script="train.py", is_file=True, nnodes="4")),
        ("--nproc_per_node=8 -m pkg.train --x", Given(script="pkg.train", nproc_per_node="8")),
        ("--guard-dir /x --guard-run-id=a t.py", Given(script="t.py", is_file=True, run_dir="/x", run_id="a")),
        (
            "--guard-fleet-spares 2 --standalone t.py",
            Given(script="t.py", is_file=True, spares="2", is_standalone=True),
        ),
        (
            "--guard-of --guard-nonsense=1 t.py",
            Given(script="t.py", is_file=True, is_off=True, unknown=("--guard-nonsense=1",)),
        ),
        ("--some-new-torch-flag t.py", Given(script="t.py", is_file=True)),
        ("--no-python /bin/train", Given(script="/bin/train")),
        ("--no-python --run-path t.py", Given(script="t.py", is_file=True)),
        ("-", Given(script="-")),
        ("--nnodes", Given(trouble="argument --nnodes: expected one argument")),
    ],
)
def test_what_matters_is_found_before_the_script_alone(words: str, found: Given) -> None:
    assert read_command(words.split()) == found


@given_any(
    st.lists(st.sampled_from(["--nnodes", "-", "--", "-m", "--guard-dir=", "-t3", "=", "x"]) | st.text(max_size=6))
)
def test_whatever_stands_there_is_an_answer(words: list[str]) -> None:
    assert isinstance(read_command(words), Given)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("--nnodes=4 t.py", "--nnodes=4 behind `--`, and --nodes 2 (that train) before it: say --nodes 4"),
        ("--nnodes=1:3 t.py", "say --nodes 3"),
        ("--guard-spares=2 t.py", "the job has 1: say --spares instead"),
        ("--nproc-per-node=4 t.py", "--nproc-per-node=4 behind `--` is what counts, not the 8 before it"),
        ("--standalone t.py", "each of 3 nodes would train for itself"),
        ("--guard-off t.py", "torchrun knows nothing of Slurm"),
        ("--node-rank=0 t.py", "would be said to every node"),
        ("--guard-nonsense=1 t.py", "guardrun knows no flag --guard-nonsense"),
        ("--nnodes=2", "no script"),
        ("--max-restarts", "would not take what stands behind `--`: argument --max"),
        ("--guard-run-id=r-$SLURM_JOB_ID t.py", "taken word for word"),
    ],
)
def test_flags_that_do_not_fit_are_said(command: str, says: str) -> None:
    said = remarks(*command.split(), nodes=2, spares=1, ranks="8")
    assert any(says in remark for remark in said), said


@pytest.mark.parametrize(
    "command", ["--nnodes=1:2 t.py", "--nproc-per-node=8 --guard-spares=1 t.py", "-m a --nnodes=9"]
)
def test_flags_that_fit_are_not(command: str) -> None:
    assert remarks(*command.split(), nodes=2, spares=1, ranks="8") == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nodes": "5"}, "--nodes=5 for sbatch, and guardrun takes 2 + 1 spares = 3"),
        ({"time": "5x"}, "--time=5x: expected minutes"),
        ({"time": "3"}, "--time=3: the ranks are asked to save 120 s before the end"),
        ({"signal": "KILL@180"}, "KILL is none"),
        ({"signal": "2@180"}, "INT is none"),
        ({"signal": "FOO@180"}, "sbatch knows no signal FOO, and would refuse the job"),
        ({"signal": "RTMIN@180"}, "sbatch knows no signal RTMIN"),
        ({"signal": "0@180"}, "sbatch knows no signal 0"),
        ({"signal": "B:FOO@180"}, "goes to the batch script alone"),
        ({"signal": "RB:USR2@180"}, "goes to the batch script alone"),
        ({"signal": "USR2"}, "--signal=USR2 has no time: 60 s before the end is little for a checkpoint; say USR2@180"),
        ({"signal": "USR2@0"}, "with 0 s Slurm sends none"),
        ({"signal": "USR2@70000"}, "at most 65535 s before the end; sbatch would refuse the job"),
        ({"signal": "TERM@90"}, "TERM ends the ranks before they have saved; USR2 does not"),
        ({"requeue": "", "no-requeue": ""}, "--requeue and --no-requeue: sbatch takes the last, which is --no-requeue"),
        ({"gpus-per-task": "8"}, "say --gpus-per-node"),
        ({"nodelist": "n[1-2]", "exclude": "n2"}, "--nodelist asks for n2, and it is left out"),
        ({"exclude": "n[1-2]"}, "of the 4 of partition gpu 0 are quarantined, 2 more excluded"),
        ({"no-kill": "off"}, "without --no-kill"),
    ],
)
def test_options_that_do_not_fit_are_said(options: Mapping[str, str], says: str) -> None:
    said = remarks("t.py", nodes=2, spares=1, options=options)
    assert any(says in remark for remark in said), said


@pytest.mark.parametrize(
    "options", [{"time": "UNLIMITED"}, {"signal": "10@180"}, {"signal": "R:usr2@180"}, {"nodes": "3"}]
)
def test_options_that_fit_are_not(options: Mapping[str, str]) -> None:
    assert remarks("t.py", nodes=2, spares=1, options=options) == []


def test_what_guardrun_does_there_counts() -> None:
    wish = JobWish(command=("t.py",), options={"time": "10", "signal": "USR1@120"})
    habits = Habits(("SIGUSR2",), 400.0)
    said = remarks_on(wish, habits=habits)
    assert len(said) == 2 and "400 s before the end" in said[0] and "USR1 is none" in said[1]


def test_more_nodes_than_a_job_may_have() -> None:
    said = remarks_on(JobWish(("t.py",), nodes=2, spares=1), CALM._replace(max_nodes=2), NODES)
    assert said == ["2 + 1 spares = 3 nodes, and partition gpu gives a job at most 2"]


def test_an_array_of_one_name_is_said() -> None:
    assert "would be one run" in remarks("--guard-run-id=foo", "t.py", options={"array": "1-3"})[0]
    assert remarks("--guard-run-id=foo", "t.py") == []


# The script ------------------------------------------------------------------------------------------------------


def test_the_last_line_looks_where_the_run_is(tmp_path: Path) -> None:
    """The script is run, with programs that say what they are given."""
    said = tmp_path / "said"
    for name in ("srun", "guardctl", "guardrun"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $GUARDRUN_DIR $*" >> {said}\nexit 3\n')
        program.chmod(0o755)
    wish = JobWish(command=("--guard-dir=/my runs", "--guard-run-id", "foo", "t.py"), guardrun=f"{tmp_path}/guardrun")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "5"}
    for one in (wish, wish._replace(command=("t.py",))):
        done = subprocess.run(["bash"], input=render(one, read_template()), text=True, env=environ, check=False)
        assert done.returncode == 3
    srun, rescue, plain, plain_rescue = said.read_text().splitlines()
    assert srun.endswith(
        "--guard-run-id=foo --guard-preemption-requeue=time_limit --guard-dir=/my runs --guard-run-id foo t.py"
    )
    assert rescue == "guardctl /my runs slurm rescue foo"
    assert plain.startswith("srun  --no-kill") and plain_rescue == "guardctl  slurm rescue slurm-5"


def test_guardctl_says_it_and_leaves_no_quarantined_node_in(tmp_path: Path) -> None:
    guardctl = find_program("guardctl") or ""
    node_state = {"GUARDRUN_NODE_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "scontrol").chmod(0o755)

    def run(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [guardctl, "sbatch", "--json", *arguments],
            env=clean_environment("", {"PATH": f"{tmp_path}:/usr/bin:/bin", **node_state}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    told = run(
        *("--exclude=n1", "--sbatch=--exclude=n2", "--time=5x", "--sbatch=--nodes=5", "--output=runs/%j.out"),
        *("--no-requeue", "--sbatch=--requeue", "--", "--nnodes", "4", "t.py"),
    )
    assert "#SBATCH --exclude=n1,n2\n" in told["script"] and "#SBATCH --job-name=t\n" in told["script"]
    said = "\n".join(told["warnings"])
    parts = ("--time=5x: expected", "--nodes=5 for sbatch", "--nnodes=4 behind", "no script t.py in", "--requeue and")
    assert all(words in said for words in (*parts, f"there is no folder {tmp_path}/runs"))
