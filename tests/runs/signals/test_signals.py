"""Ends that come from outside: Ctrl-C, SIGTERM, SIGHUP, and SIGKILL of guardrun itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.runs.runs import RESUME, EdgeRuns, check_replay, finish, log_of
from tests.support.guardrun_run import GuardrunRun
from tests.support.waiting import wait_until

LONG = ["--steps", "100000", "--step-s", "0.02", "--save-every", "0"]


def start(edge: EdgeRuns, *more: str, config: str = RESUME) -> GuardrunRun:
    """A run that would go on for long, with two ranks at work and all that belongs to a run in place."""
    run = edge.start("plain.py", *LONG, *more, config=config)
    run.wait_for_output("rank 0: starts at step")
    run.wait_for_output("rank 1: starts at step")
    return run


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_signal_ends_the_ranks_and_the_run_with_its_own_status(
    edge: EdgeRuns, signum: signal.Signals, status: int
) -> None:
    run = start(edge)
    run.send(signum)
    finished = finish(run, 30)
    assert finished.returncode == status
    assert finished.incidents == []
    assert finished.summary is not None
    assert finished.summary["outcome"] == "interrupted"
    assert finished.summary["reason"] == f"signal {int(signum)}" or signum.name in finished.summary["reason"]


def test_nohup_outlives_its_terminal(edge: EdgeRuns) -> None:
    """torch's process layer takes SIGHUP over whenever it starts ranks; the second attempt's, too."""
    program = ["nohup", str(Path(sys.executable).with_name("guardrun"))]
    run = edge.start("plain.py", "--plan", "0:kill@15:1", "--steps", "200", "--step-s", "0.02", program=program)
    for attempt in range(2):
        run.wait_for_output(f"attempt {attempt} rank 0: starts at step")
        run.send(signal.SIGHUP)
    finished = finish(run)
    assert finished.returncode == 0, finished
    assert [one["cause"] for one in finished.incidents] == ["killed"]


def test_a_second_ctrl_c_ends_ranks_that_do_not_listen_at_once(edge: EdgeRuns) -> None:
    run = start(edge, "--ignore-sigint", config=f"{RESUME}[restart]\nstop_grace_s = 60\n")
    run.send(signal.SIGINT)
    time.sleep(1.0)
    assert len(run.find("plain.py")) >= 2  # they are given time
    began_s = time.monotonic()
    run.send(signal.SIGINT)
    finished = finish(run, 30)
    assert finished.returncode == 130
    assert time.monotonic() - began_s < 30


def test_ctrl_c_while_an_attempt_is_being_stopped_ends_the_run(edge: EdgeRuns) -> None:
    run = start(edge, "--ignore-sigterm", "--plan", "0:kill@5:1")
    wait_until(lambda: "stop_began" in log_of(run), 30, "the stop to begin")
    run.send(signal.SIGINT)
    assert finish(run, 30).returncode == 130


def test_a_rank_s_own_last_words_after_ctrl_c_are_not_taken_for_a_crash(edge: EdgeRuns) -> None:
    run = start(edge)
    run.send(signal.SIGINT)
    finished = finish(run, 30)
    assert "KeyboardInterrupt" in finished.stderr
    assert finished.incidents == []


@pytest.mark.parametrize("more", [[], ["--leave-children", "--ignore-sigterm"]], ids=["plain", "with children"])
def test_sigkill_of_guardrun_takes_everything_with_it(edge: EdgeRuns, more: list[str]) -> None:
    run = start(edge, *more)
    assert len(run.alive()) >= 4
    run.send(signal.SIGKILL)
    wait_until(lambda: not run.alive(), 15, "everything to be gone")
    result = run.wait(30)
    assert result.returncode == -signal.SIGKILL
    assert "guardrun itself was killed" in result.stderr
    assert run.run_dir is not None
    check_replay(run.run_dir)


def test_sigkill_of_guardrun_and_its_supervisor_at_once_ends_the_ranks(edge: EdgeRuns) -> None:
    """Nobody is left to end them: the kernel does (PR_SET_PDEATHSIG)."""
    run = start(edge)
    daemons = run.find("guardrund")
    assert len(daemons) == 1
    os.kill(daemons[0].pid, signal.SIGSTOP)
    run.send(signal.SIGKILL)
    os.kill(daemons[0].pid, signal.SIGKILL)
    wait_until(lambda: not run.alive(), 15, "everything to be gone")
