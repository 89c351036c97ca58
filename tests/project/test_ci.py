""".ci/run says what it does and when, and does not take longer than it may."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.project.purity import ROOT

MAKE = """#!/bin/sh
echo "make $* real=${GUARDRUN_REQUIRE_REAL:-0}"
case "$*" in
*"$SLOW"*) exec sleep "$SLOW_S" ;;
*"$FAILS"*) exit 3 ;;
esac
"""


def run_ci(folder: Path, python: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The script in a folder of its own, with a `make` that only says what it was asked, and nothing to install.

    python: a shell script instead of the one of .venv; empty: there is none.
    """
    (folder / "bin").mkdir()
    (folder / "project" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / "project" / ".ci")
    for name, text in (("make", MAKE), ("id", "#!/bin/sh\necho 1000\n")):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    if python:
        own = folder / "project" / ".venv" / "bin" / "python"
        own.parent.mkdir(parents=True)
        own.write_text(f"#!/bin/sh\n{python}\n")
        own.chmod(0o755)
    nothing = {"SLOW": "no such target", "SLOW_S": "0", "FAILS": "no such target"}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [folder / "project" / ".ci" / "run"],
        env={**nothing, **variables, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,  # four times its torch computes, on a machine that may be busy
        check=False,
    )


def steps(output: str) -> list[str]:
    return re.findall(r"^== (.*) \(\d\d:\d\d:\d\dZ, after \d+ s\)$", output, re.MULTILINE)


def test_each_step_is_said_and_the_tests_need_every_real_part(tmp_path: Path) -> None:
    done = run_ci(tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps(done.stdout) == ["make lint", "make demo", "make test-lowest", "make test", "done"]
    asked = re.findall(r"^make (.*)$", done.stdout, re.MULTILINE)
    assert asked[:3] == ["lint real=0", "demo real=0", "test-lowest real=0"]
    assert asked[3] == "test real=1"


def test_a_step_that_fails_ends_it_with_its_status(tmp_path: Path) -> None:
    done = run_ci(tmp_path, FAILS="demo")
    assert (done.returncode, steps(done.stdout)) == (3, ["make lint", "make demo"])
    assert "together may take" not in done.stderr


@pytest.mark.parametrize("slow", ["demo", "test"])
def test_what_would_take_too_long_is_ended_and_that_is_said(tmp_path: Path, slow: str) -> None:
    began_s = time.monotonic()
    done = run_ci(tmp_path, SLOW=slow, SLOW_S="200", CI_LIMIT_S="10")
    assert done.returncode == 1
    assert time.monotonic() - began_s < 120
    words = "packages, lint, demo and tests together may take 10 s, and"
    assert re.fullmatch(rf"\n\.ci/run: ended make {slow}.*: {words} \d+ s have passed\n", done.stderr)


def test_what_took_too_long_before_a_step_is_said_there(tmp_path: Path) -> None:
    """Between two steps, or in one that outlives its end."""
    text = (ROOT / ".ci" / "run").read_text()
    assert text.rstrip().endswith('step "done"'), "the end is a step, too"
    done = run_ci(tmp_path, CI_LIMIT_S="-1")
    assert done.returncode == 1
    assert ".ci/run: too late for make lint: " in done.stderr
    assert steps(done.stdout) == []


def test_the_limit_is_twenty_five_minutes() -> None:
    assert 'LIMIT_S="${CI_LIMIT_S:-1500}"' in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(
    ("hundredths", "limit_s"), [("87", 0), ("100", 0), ("137", 2055), ("200", 3000), ("1234", 3000), ("", 0)]
)
def test_a_slower_machine_has_longer_twice_at_most(tmp_path: Path, hundredths: str, limit_s: int) -> None:
    done = run_ci(tmp_path, python=f"cat >/dev/null; echo {hundredths}" if hundredths else "exit 1")
    assert done.returncode == 0, done.stderr
    found = re.findall(
        r"^(.*) s of a CPU to import torch, which is slow: .* may take (\d+) s$", done.stdout, re.MULTILINE
    )
    assert found == ([(f"{int(hundredths) / 100:.2f}", str(limit_s))] if limit_s else [])


def test_what_importing_torch_takes_is_measured(tmp_path: Path) -> None:
    """By the python that is there: here one whose torch computes for a while."""
    (tmp_path / "torch.py").write_text("import time\nwhile time.process_time() < 1.2: pass\n")
    done = run_ci(tmp_path, python=f'exec {sys.executable} "$@"', PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    [limit_s] = re.findall(r"which is slow: all steps together may take (\d+) s$", done.stdout, re.MULTILINE)
    assert 1800 <= int(limit_s) <= 3000
