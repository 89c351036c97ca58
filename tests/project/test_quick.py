"""Which tests are quick is a rule; what it keeps in spite of itself is there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.purity import ROOT
from tests.support.quick import FIXTURES, KEPT, MARKS, PARTS, PLACES, reason_to_leave_out
from tests.support.real import PARTS as KNOWN_PARTS

BEHAVIOURS = (
    "a run of the launcher",
    "a hang is found",
    "a crash is told",
    "an attempt resumes",
    "a supervisor is killed",
)


@pytest.mark.parametrize("behaviour", KEPT)
def test_each_test_that_is_kept_is_there(behaviour: str) -> None:
    path, _, name = KEPT[behaviour].partition("::")
    functions = [node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in functions


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_what_must_be_shown_by_real_processes_is_among_the_quick_ones(behaviour: str) -> None:
    assert [name for name in KEPT if name.startswith(behaviour)]


def test_the_tables_name_what_there_is() -> None:
    assert all((ROOT / place).exists() for place in PLACES)
    assert set(PARTS) <= set(KNOWN_PARTS)
    defined = "".join(path.read_text() for path in (ROOT / "tests").rglob("conftest.py"))
    assert all(f"def {fixture}(" in defined for fixture in FIXTURES)
    known = (ROOT / "pyproject.toml").read_text()
    assert all(f'"{mark}: ' in known for mark in MARKS)


def test_the_rule() -> None:
    kept = KEPT["a supervisor is killed"]
    assert reason_to_leave_out("tests/engine/detectors/hang/test_hang.py::test_a") == ""
    assert reason_to_leave_out(kept, {"slow"}, {"py-spy"}) == ""
    assert reason_to_leave_out(f"{kept}[two]", {"slow"}) == ""
    assert reason_to_leave_out(f"{kept}_and_more") == "tests/runs: whole runs of guardrun"
    assert reason_to_leave_out("tests/engine/detectors/hang/test_hang.py::test_a", {"slow"}).startswith("slow: ")
    assert reason_to_leave_out("tests/cli/test_live.py::test_a", parts={"root", "netns"}).startswith("netns: ")
    assert reason_to_leave_out("tests/cli/test_live.py::test_a", fixtures={"tmp_path", "launcher"}).startswith(
        "launcher"
    )
    assert reason_to_leave_out("tests/hooks/patches/test_step_breakdown.py::test_a").startswith(
        "tests/hooks/patches/test_step_breakdown.py: "
    )
    assert reason_to_leave_out("tests/edges/test_a.py::test_a") == ""


def test_pytest_runs_what_the_rule_leaves(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\nfrom tests.conftest import _leak_guard\n")
    (tmp_path / "test_both.py").write_text("""
import pytest

@pytest.mark.slow
def test_slow(): raise AssertionError("it ran")

@pytest.mark.real("root", "slurm")
def test_slurm(): raise AssertionError("it ran")

def test_whole_run(guardrun_starter): raise AssertionError("it ran")

def test_quick(): pass
""")
    own = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "--confcutdir", str(tmp_path)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *own,
            "-p",
            "tests.support.quick",
            "-p",
            "no:cacheprovider",
            "-n",
            "1",
            tmp_path,
        ],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DEBUG_TEMPROOT": str(tmp_path)},  # not to close that of others to other users
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "1 passed" in done.stdout and "failed" not in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
