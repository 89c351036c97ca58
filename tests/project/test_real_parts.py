"""GUARDRUN_REQUIRE_REAL turns the skip of a real part into a failure that names the part."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pytest

@pytest.mark.real("flux-capacitor")
def test_skips_itself():
    pytest.skip("no plutonium")

@pytest.mark.real("gpu")
def test_no_ci_machine_has_it():
    pytest.skip("no device")

def test_ordinary_skip():
    pytest.skip("not today")
"""


def run_pytest(folder: Path, required: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\nfrom tests.conftest import _leak_guard\n")
    (folder / "test_parts.py").write_text(TESTS)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "--confcutdir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q", "-p", "no:cacheprovider", str(folder / "test_parts.py")],
        cwd=ROOT,
        env={**os.environ, "GUARDRUN_REQUIRE_REAL": required},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_skips_are_skips_without_it(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "")
    assert "3 skipped" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_a_required_part_that_is_skipped_fails_by_name(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "1")
    assert "1 failed, 2 skipped" in done.stdout, done.stdout + done.stderr
    assert "real part flux-capacitor was skipped: Skipped: no plutonium" in done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
