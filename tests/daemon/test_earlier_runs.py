"""What earlier runs have learned of a script goes for the same script, the same arguments and the same folder alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.daemon.earlier_runs import read_past


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs; a script beside it, older than they are."""
    (tmp_path / "train.py").write_text("pass")
    os.utime(tmp_path / "train.py", (1000, 1000))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def leave(runs: Path, name: str, *, mtime_s: float = 2000.0, resumes: str = "", **changes: Any) -> Path:
    """A run, as it leaves its directory."""
    folder = runs / name
    folder.mkdir()
    script = ["python", "-u", "train.py", "--lr=1"]
    run = {"script": script, "cwd": str(runs.parent), "created_wall_s": 1500.0, **changes}
    (folder / "run.json").write_text(json.dumps(run))
    os.utime(folder / "run.json", (mtime_s, mtime_s))
    summary = {"stalls": [{"place": "f (a.py)", "seconds": 40}], **({"resumes": resumes} if resumes else {})}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_the_last_that_learned_it_is_believed(runs: Path) -> None:
    leave(runs, "first", mtime_s=2000, resumes="opens")
    leave(runs, "second", mtime_s=3000, resumes="ignores")
    leave(runs, "third", mtime_s=4000)
    past = read_past(leave(runs, "now", mtime_s=5000))
    assert (past.resumes, past.stalls) == ("ignores", {"f (a.py)": 40.0})


@pytest.mark.parametrize(
    "changes",
    [{"script": ["python", "-u", "train.py", "--lr=2"]}, {"cwd": "/elsewhere"}, {"created_wall_s": 500.0}, {}],
)
def test_another_command_another_folder_or_an_older_script_says_nothing(runs: Path, changes: dict[str, Any]) -> None:
    leave(runs, "before", resumes="ignores", **changes)
    assert read_past(leave(runs, "now")).resumes == ("" if changes else "ignores")


@pytest.mark.parametrize("said", ["always", 3, None])
def test_what_nobody_knows_is_not_believed(runs: Path, said: Any) -> None:
    folder = leave(runs, "before")
    (folder / "summary.json").write_text(json.dumps({"resumes": said}))
    assert read_past(leave(runs, "now")).resumes == ""
