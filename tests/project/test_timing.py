"""What a run of the tests says of its own time; and the tests that are recorded as slow say why."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.real import REQUIRE_VARIABLE
from tests.support.spread import is_shared, read_durations
from tests.support.startup_log import VARIABLE, StartupCost
from tests.support.timing import FileCost, Measured, is_unexplained, report_lines, startup_line

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from tests.conftest import *
from tests.conftest import _leak_guard
from tests.support import timing
timing.TOLD_S = 0.2
"""
BURNS = """
import subprocess, sys, time

def burn():
    began = time.process_time()
    while time.process_time() < began + 0.3: pass

def test_in_itself():
    \"\"\"Long, for it burns.\"\"\"
    burn()

def test_in_a_child():
    \"\"\"Long: its child burns.\"\"\"
    code = "import time\\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
"""
WAITS = """
import time

def test_long_and_silent():
    time.sleep(0.3)

def test_short():
    pass
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of its own over two files, one that computes and one that waits."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_burns.py").write_text(BURNS)
    (folder / "test_waits.py").write_text(WAITS)
    own = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "--confcutdir", str(folder)]
    inherited = os.environ.keys() - {VARIABLE, REQUIRE_VARIABLE}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *own, "-p", "no:cacheprovider", *options, str(folder)],
        cwd=ROOT,
        # Its one child is nothing to start a fork server for, which would import torch; and it closes the folder of
        # temporary ones to all other users, which may be other tests', just then.
        env={name: os.environ[name] for name in inherited} | {"TEST_COLD": "1", "PYTEST_DEBUG_TEMPROOT": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadfile")], ids=["one process", "workers"])
def test_the_report_has_time_files_and_slow_tests(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Long on a busy machine: pytest runs in pytest."""
    done = run_pytest(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    where = "2 workers" if options else "one process"
    assert re.search(rf"^\d+ s for 4 tests in {where}; [1-9]\d* CPU seconds$", done.stdout, re.MULTILINE), done.stdout
    files = re.findall(r"^ +([\d.]+) +([\d.]+) +2  (test_\w+\.py)$", done.stdout, re.MULTILINE)
    cost = {name: (float(wall_s), float(cpu_s)) for wall_s, cpu_s, name in files}
    assert cost["test_burns.py"][1] >= 0.6, "that of the child counts, too"
    assert cost["test_waits.py"][0] >= 0.3 and cost["test_waits.py"][1] < 0.3
    told = done.stdout.partition("whose docstring does not say why")[2]
    assert "test_waits.py::test_long_and_silent" in told and "test_burns" not in told and "test_short" not in told


def test_quiet_means_two_lines(tmp_path: Path) -> None:
    """Long on a busy machine: a pytest is started, with all its plugins."""
    shown = run_pytest(tmp_path, "-q", "-k", "burns").stdout
    assert "CPU seconds" in shown and "slowest files" not in shown


def test_nothing_of_the_run_is_left(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = pytest.MonkeyPatch()
    with environ.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        run_pytest(tmp_path, "-k", "short", "-p", "no:tmpdir")
    assert not list(temporary.glob("guardrun-*"))


@cache
def docstrings(path: str) -> dict[str, str]:
    """By test function of a file."""
    functions = [node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)]
    return {function.name: ast.get_docstring(function) or "" for function in functions}


def test_what_is_recorded_as_slow_says_why() -> None:
    """By what was recorded, on a machine that had nothing else to do: the seconds of this very run are chance."""
    told = {}
    for test, took in read_durations().items():
        path, _, name = test.partition("::")
        if not is_shared(path) and (ROOT / path).exists():  # else a fixture's seconds are in its first test's
            docstring = docstrings(path).get(name.partition("[")[0], "")
            told[test] = is_unexplained(took.wall_s, docstring)
    assert len(told) > 100
    assert [test for test, is_silent in told.items() if is_silent] == []


def test_a_docstring_explains_and_an_empty_one_does_not() -> None:
    assert is_unexplained(20.1, None) and is_unexplained(21, " ")
    assert not is_unexplained(20.1, "The patience that guardrun has by itself.") and not is_unexplained(20.0, None)


def test_files_of_several_workers_are_added_up_the_ten_slowest_are_told() -> None:
    everything = Measured(workers=0, cpu_s=1.0)
    for worker in range(2):
        files = {f"tests/test_{n:02}.py": FileCost(1, float(n), 0.5) for n in range(worker, 14)}
        everything.add(Measured.from_plain(Measured(files, {f"slow-{worker}": 30.0 + worker}, cpu_s=20.0).to_plain()))
    lines = report_lines(everything, 61.4, StartupCost(30, 0.6, 4, 7.6, 26))
    assert lines[0] == "61 s for 27 tests in 2 workers; 41 CPU seconds"
    assert lines[1].startswith(
        "20% of these was starting Python (30 times, 1 s) and importing torch (4 times, 8 s); 26 "
    )
    assert lines[4] == "     26.0      1.0      2  tests/test_13.py"
    assert [line.split()[-1] for line in lines[4:14]] == [f"tests/test_{n:02}.py" for n in range(13, 3, -1)]
    assert [line.split() for line in lines[15:]] == [["31.0", "slow-1"], ["30.0", "slow-0"]]


def test_a_run_within_another_leaves_the_counting_to_it() -> None:
    assert "by the run around this one" in startup_line(None, 10.0)
