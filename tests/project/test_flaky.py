"""Tests are run many times under load; what the load is made of ends with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.flaky import WRITTEN_BYTES, Outcome, load, parse_outcome, table
from tests.support.processes import is_alive
from tests.support.startup_log import VARIABLE
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import pathlib

def test_every_second_time():
    runs = pathlib.Path(__file__).with_name("runs")
    runs.write_text((runs.read_text() if runs.exists() else "") + "x")
    print("ERROR of no test")
    assert len(runs.read_text()) % 2, "now and then"

def test_always():
    pass
"""


def used_ticks(pid: int) -> int:
    """utime of /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def written_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.partition("wchar: ")[2].split()[0])


def test_the_load_computes_and_writes_no_more_than_its_part_and_ends_with_the_block(tmp_path: Path) -> None:
    with load(str(tmp_path), busy=1) as (busy, writer):
        wait_until(lambda: used_ticks(busy) > 5, 20, "it to be busy")
        wait_until(lambda: written_bytes(writer) > 3 * WRITTEN_BYTES, 60, "it to write again and again")
        sizes = [
            file.stat().st_size for file in Path(f"/proc/{writer}/fd").iterdir() if str(tmp_path) in os.readlink(file)
        ]
        assert len(sizes) == 1 and sizes[0] <= WRITTEN_BYTES
        assert os.getpriority(os.PRIO_PROCESS, busy) == os.getpriority(os.PRIO_PROCESS, 0)
    assert not is_alive(busy) and not is_alive(writer)
    assert not list(tmp_path.iterdir())


def test_the_load_does_not_outlive_one_that_could_not_end_it(tmp_path: Path) -> None:
    code = f"""
import sys
from tests.support.flaky import load
with load({str(tmp_path)!r}, busy=1) as pids:
    print(*pids, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pids = [int(pid) for pid in holder.stdout.readline().split()]
        holder.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), 20, "both to end")
    assert len(pids) == 2


def run_flaky(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_two.py").write_text(TESTS)
    own = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "--confcutdir", str(folder)]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.flaky",
            "--busy=0",
            *arguments,
            "--",
            *own,
            "-p",
            "no:cacheprovider",
            str(folder),
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != VARIABLE},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_test_that_fails_now_and_then_is_named_with_the_seed(tmp_path: Path) -> None:
    done = run_flaky(tmp_path, "--runs", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    seeds = re.findall(r"^run \d of 2: seed (\d+)$", done.stdout, re.MULTILINE)
    assert len(set(seeds)) == 2 and re.findall(r"randomly-seed=(\d+)", done.stdout) == seeds
    told = done.stdout.splitlines()[-5:]
    assert [line.split() for line in told[:1]] == [["run", "seed", "s", "passed", "failed"]]
    assert [told[1].split()[i] for i in (0, 1, 3, 4)] == ["1", seeds[0], "2", "0"]
    assert [told[2].split()[i] for i in (0, 1, 3, 4)] == ["2", seeds[1], "1", "1"]
    assert told[3].endswith("/test_two.py::test_every_second_time")
    assert told[4:] == ["1 of 2 runs failed"]


def test_some_tests_only(tmp_path: Path) -> None:
    done = run_flaky(tmp_path, "--runs", "2", "-k", "always")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("2 runs without a failure\n")


def test_no_test_at_all_is_no_success(tmp_path: Path) -> None:
    done = run_flaky(tmp_path, "--runs", "1", "-k", "nowhere")
    assert done.returncode == 1 and "pytest ended with 5" in done.stdout


def test_asked_to_end_it_ends_all_that_it_started(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text("import os, time\ndef test_w(): open('in', 'w').close(); time.sleep(60)\n")
    command = [
        sys.executable,
        "-m",
        "tests.support.flaky",
        "--busy=1",
        "--runs=1",
        "--",
        "--rootdir",
        ".",
        "test_waits.py",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as run:
        try:
            wait_until((tmp_path / "in").exists, 30, "the test to run")
        finally:
            run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 143, output
    # Whatever was left would be a child of this process by now: the leak guard says so.


def test_what_pytest_says_last_is_understood() -> None:
    summary = """\
SKIPPED [1] tests/a.py:3: no device
FAILED a.py::b[x - y] - assert 0
ERROR a.py::b[x - y] - left behind:
ERROR c.py
FAILED a.py::d
=== 2 failed, 12 passed, 1 skipped, 2 errors in 4.20s ===
"""
    outcome = parse_outcome(7, 1, f"ERROR in a log\n99 passed\n=== short test summary info ===\n{summary}", 1.0)
    assert (outcome.passed, outcome.failed) == (12, ("a.py::b[x - y]", "c.py", "a.py::d"))


def test_the_table_tells_a_broken_run_from_a_failing_one() -> None:
    outcomes = [Outcome(1, 0, 5, (), 9.6), Outcome(4294967295, 3, 0, (), 0.4)]
    assert table(outcomes).splitlines() == [
        " run        seed      s  passed  failed",
        "   1           1     10       5       0",
        "   2  4294967295      0       0       0",
        "       pytest ended with 3",
        "1 of 2 runs failed",
    ]
