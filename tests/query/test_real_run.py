"""A real job of two ranks, asked while it trains, while it hangs, and after all of it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.client.supervisor_client import ask
from guardrun.supervisor.query.bounds import Bounds
from guardrun.supervisor.query.run_query import QueryResult, RunQuery
from guardrun.supervisor.rundir.run_directory import read_run_file
from guardrun.supervisor.wire.control_messages import Answer
from tests.diagnose.conftest import Commanded, start_commanded
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

WATCHED = '[policy]\nact = false\n[hang]\nfloor_s = 3\nsensitivity = "eager"\nscale = 0.5\n'
STACKS = "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10"
BLOCKED = "SELECT pid FROM python.backtrace WHERE rank = 1 AND is_main AND func = 'fetch_vocabulary_update'"


def query(job: Commanded, sql: str, *, is_over: bool = False) -> QueryResult:
    run_dir = job.run.run_dir
    assert run_dir is not None
    run = read_run_file(run_dir)

    def ask_it(verb: str, arguments: dict[str, Any], timeout_s: float) -> Answer:
        return ask(run, run_dir, verb, arguments, timeout_s)

    return RunQuery(run_dir, run, None if is_over else ask_it, "it is over", Bounds(seconds=60.0)).answer(sql)


def test_a_job_that_trains_hangs_and_is_killed(tmp_path: Path) -> None:
    """Long: one job in each of its states."""
    starter, job = start_commanded(tmp_path, None, config=WATCHED)
    try:
        trains(job)
        hangs(job)
        killed(job)
    finally:
        starter.close()


def trains(job: Commanded) -> None:
    """A look for which py-spy took too long shows fewer: it is asked for again."""
    ranks = "SELECT rank, pid, hooks FROM ranks ORDER BY rank"
    expected = [(rank, job.pid_of(rank), 1) for rank in range(2)]
    wait_until(lambda: query(job, ranks).answer.rows == expected, 60.0, "both ranks, with hooks")
    command = [sys.executable, "-m", "guardrun.supervisor.cli.guardctl", "query", "--json"]

    def shows_both() -> bool:
        done = subprocess.run(
            [*command, STACKS], cwd=job.folder, capture_output=True, text=True, timeout=240, check=True
        )
        rows = msgspec.json.decode(done.stdout)["rows"]
        assert len(rows) <= 10
        assert done.stderr.startswith("guardctl: python.backtrace: as of ") and done.stderr.endswith(" s ago\n")
        return [row["depth"] for row in rows[:2]] == [0, 0]

    wait_until(shows_both, 60.0, "both ranks' stacks")
    both = "SELECT DISTINCT rank FROM python.backtrace WHERE file LIKE '%/commanded.py' ORDER BY rank"
    wait_until(lambda: query(job, both).answer.rows == [(0,), (1,)], 60.0, "both ranks' script")


def hangs(job: Commanded) -> None:
    job.suffer("block")
    [found] = wait_until(lambda: query(job, BLOCKED).answer.rows, 60.0, "rank 1 in its download")
    assert found == (job.pid_of(1),)
    waits = "SELECT DISTINCT op FROM collectives WHERE rank = 0 AND state <> 'completed'"
    # Nothing has rank 0 be there before rank 1 is blocked.
    wait_until(lambda: query(job, waits).answer.rows == [("all_reduce",)], 60.0, "rank 0 in its all_reduce")
    inside = "SELECT rank FROM collectives WHERE state = 'inside'"
    wait_until(lambda: query(job, inside).answer.rows == [(0,)], 60.0, "rank 0 inside of it")
    # What a query of live stacks takes, beyond the look that `stacks` takes as well.
    began_s = time.process_time()
    told = query(job, STACKS)
    assert time.process_time() - began_s < 0.5
    assert told.as_of["python.backtrace"]["age_s"] < 60
    # Not one that was taken before, of a step that a busy machine had made long.
    wait_until(lambda: query(job, BLOCKED, is_over=True).answer.rows, 120.0, "guardrun's own look")


def killed(job: Commanded) -> None:
    [supervisor] = job.run.supervisors()

    def send(signum: signal.Signals) -> None:
        os.kill(job.run.pid, signum)
        os.kill(supervisor.pid, signum)

    def is_stopped_after_a_look() -> bool:
        """One in which py-spy had time for rank 1."""
        send(signal.SIGSTOP)
        if query(job, BLOCKED, is_over=True).answer.rows:
            return True
        send(signal.SIGCONT)
        return False

    # Stopped first: of two that are killed one after the other, the one that is left could start another supervisor.
    wait_until(is_stopped_after_a_look, 60.0, "a look with rank 1's stack", every_s=1.0)
    send(signal.SIGKILL)
    job.run.process.wait(60)
    told = query(job, BLOCKED, is_over=True)
    assert len(told.answer.rows) == 1
    assert told.notes[0].startswith("python.backtrace: as of the look ") and told.notes[0].endswith("(it is over)")
    attempts = query(job, "SELECT attempt, ranks, ended_s FROM attempts", is_over=True).answer.rows
    assert attempts == [(0, 2, None)]
