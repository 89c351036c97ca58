"""Places where the kernel refuses what guardrun would like to use: found, mended and ended as anywhere else."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.runs.runs import QUICK, RESUME, EdgeRuns
from tests.support import seccomp
from tests.support.waiting import wait_until

GUARDRUN = str(Path(sys.executable).with_name("guardrun"))


def locked(calls: str, code: str) -> list[str]:
    return [sys.executable, seccomp.__file__, calls, code, GUARDRUN]


@pytest.mark.parametrize(
    ("calls", "code"),
    [
        ("pidfd_open", "EPERM"),
        ("pidfd_open", "ENOSYS"),
        ("pidfd_send_signal", "EPERM"),
        ("process_vm_readv,ptrace", "EPERM"),
        ("process_vm_readv", "EPERM"),
        ("ptrace", "EPERM"),
        ("kcmp,perf_event_open,clone3", "ENOSYS"),
        ("kcmp", "EPERM"),
        ("perf_event_open", "EPERM"),
        ("clone3", "ENOSYS"),
    ],
)
def test_a_crash_and_a_hang_are_found_and_mended(edge: EdgeRuns, calls: str, code: str) -> None:
    """Long where the hang's stacks must come without ptrace."""
    plan = ("--plan", "0:kill@15:1,1:block@25:*", "--steps", "40")
    finished = edge.run("plain.py", *plan, config=RESUME + QUICK, program=locked(calls, code))
    assert finished.returncode == 0, finished
    told = [(one["cause"], [culprit["rank"] for culprit in one["culprits"]]) for one in finished.incidents]
    assert told == [("killed", [1]), ("rank_blocked", [0, 1])], finished
    assert [one["resumed_from"]["step"] for one in finished.incidents] == [10, 20]
    assert "fetch_vocabulary_update" in finished.incidents[1]["summary"]


@pytest.mark.parametrize("code", ["EPERM", "ENOSYS"])
def test_without_pidfds_signals_are_heeded_and_nothing_outlives_guardrun(edge: EdgeRuns, code: str) -> None:
    for signum, status in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        pause = ("--plan", "*:pause@15:*", "--seconds", "1000", "--out", f"out-{status}")
        run = edge.start("plain.py", *pause, program=locked("pidfd_open", code))
        wait_until((edge.folder / f"out-{status}" / "ckpt_10.safetensors").exists, 60.0, "the first checkpoint")
        assert run.find("guardrund"), "it is supervised"
        run.send(signum)
        assert run.wait().returncode == status
        wait_until(lambda run=run: not run.alive(), 30.0, "the end of what it had started")
