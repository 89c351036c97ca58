"""What a job needs and is not there when it is submitted: its script, and the folders of its output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from guardrun.slurm.batch.missing_files import remarks_on_files
from guardrun.slurm.batch.script import JobWish


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script, and a folder for output."""
    (tmp_path / "train.py").touch()
    (tmp_path / "logs" / "me").mkdir(parents=True)
    return tmp_path


def said(folder: Path, *command: str, **options: str) -> list[str]:
    return remarks_on_files(JobWish(command=command or ("train.py",), name="llm", options=options), folder, "me")


@pytest.mark.parametrize(
    "command",
    [
        "train.py --x",
        "--nnodes 2 ./train.py",
        "-m no.such.module",
        "--no-python no-such-program",
        "-",
        "logs",  # a folder with a __main__.py is a script, too
        "--nnodes",  # refused with a sentence of its own
    ],
)
def test_a_script_that_may_be_there_is_no_remark(folder: Path, command: str) -> None:
    assert said(folder, *command.split()) == []


def test_a_script_that_is_not_there_is_said_with_the_folder_where_it_is_looked_for(folder: Path) -> None:
    assert said(folder, "nosuch.py", "--x") == [
        f"there is no script nosuch.py in {folder}, where the job would run: guardrun would end at once on every node"
    ]
    assert "no script $HOME/train.py in" in said(folder, "$HOME/train.py")[0]
    assert said(folder, "--no-python", "--run-path", "nosuch.py")
    absolute = f"{folder}/nosuch.py"
    assert said(folder, absolute)[0].startswith(f"there is no script {absolute} here: ")
    assert said(folder, f"{folder}/train.py/x.py")


def test_a_job_that_runs_elsewhere_has_its_script_there(folder: Path) -> None:
    assert said(folder, "../train.py", chdir="logs") == []
    assert f"in {folder}/logs," in said(folder, chdir="logs")[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look everywhere")
def test_what_may_not_be_looked_at_is_not_said_to_be_missing(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0)
    assert said(folder, "closed/train.py", output="closed/in/x.out") == []


def test_nor_is_what_the_system_refuses_to_follow(folder: Path) -> None:
    """Whoever asks: root, too, whom no mode keeps out."""
    (folder / "loop").symlink_to("loop")
    assert said(folder, "loop/train.py", output="loop/in/x.out") == []


@pytest.mark.parametrize(
    "output", ["%x-%j.out", "logs/%x-%A_%a.out", "logs/%u/%j.out", "/dev/null", "./x", "100%%/../x", "logs/\\%j.out"]
)
def test_output_that_can_be_written_is_no_remark(folder: Path, output: str) -> None:
    (folder / "100%").mkdir()
    assert said(folder, output=output, error=output) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"output": "runs/%x-%j.out"}, "--output=runs/%x-%j.out: there is no folder {}/runs, and Slurm makes none"),
        ({"error": "/no/such/x.err"}, "--error=/no/such/x.err: there is no folder /no/such, and"),
        ({"output": "logs/%x/out"}, "there is no folder {}/logs/llm, and"),
        ({"output": "train.py/out"}, "there is no folder {}/train.py, and"),
        ({"output": "logs/%4j/out"}, "a folder with %4j in its name cannot be there before the job is"),
        ({"output": "logs/\\%j/out"}, "there is no folder {}/logs/%j, and"),
        ({"output": "logs/"}, "--output=logs/ is a folder: name a file, as logs/%x-%j.out"),
        ({"output": "logs"}, "--output=logs is a folder"),
        ({"chdir": "logs", "output": "logs/x"}, "there is no folder {}/logs/logs, and"),
    ],
)
def test_output_that_would_fail_the_job_is_said(folder: Path, options: dict[str, Any], says: str) -> None:
    found = said(folder, f"{folder}/train.py", **options)
    assert len(found) == 1 and says.format(folder) in found[0], found
    assert "the job would fail at once, without a word" in found[0]
