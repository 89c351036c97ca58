"""The command itself, and what its measurements stand on, by real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.item import CannotMeasure
from benchmarks.items.socket_desk import measure_once
from benchmarks.items.supervisor_cost import read_cpu_s, read_pss_mb
from benchmarks.job import Job, Launcher
from tests.project.purity import ROOT
from tests.support.processes import is_alive


def test_a_quick_run_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    """Long on a busy machine: the engine is timed."""
    path = tmp_path / "bench.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--only", "engine", "--json", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "measurement" in done.stdout
    assert "engine: " in done.stdout
    report = json.loads(path.read_text())
    assert report["failures"] == []
    assert all(figure["samples"][0] > 0 for figure in report["figures"])
    assert report["command"] == "python benchmarks/run.py --quick --only engine"


def test_a_job_ends_all_that_it_started() -> None:
    with Job(Launcher.GUARDRUN, "first_line.py", ["--stay"], ranks=1) as job:
        moment = job.wait_for("first")[0]
        assert moment.at_ns > job.began_ns
        assert is_alive(moment.pid)
        assert job.find("guardrund")
    assert not is_alive(moment.pid)
    assert not job.folder.exists()


def test_a_job_that_fails_says_what_it_said() -> None:
    with Job(Launcher.TORCHRUN, "no_such_script.py", ranks=1) as job:
        with pytest.raises(CannotMeasure, match="ended before 'first'"):
            job.wait_for("first", timeout_s=200)
        with pytest.raises(CannotMeasure, match=r"(?s)ended with 1.*no_such_script\.py"):
            job.wait()


def test_messages_are_counted_through_a_real_socket() -> None:
    assert measure_once(2000) > 0


def test_cpu_and_memory_of_a_process_are_those_of_the_kernel() -> None:
    before, began = read_cpu_s(os.getpid()), time.process_time()
    while time.process_time() < began + 0.05:
        pass
    assert read_cpu_s(os.getpid()) - before == pytest.approx(time.process_time() - began, abs=0.02)
    assert 5 < read_pss_mb(os.getpid()) < 5000
    with pytest.raises(CannotMeasure):
        read_cpu_s(2**22 + 1)
