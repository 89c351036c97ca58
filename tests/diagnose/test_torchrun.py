"""A job of plain torchrun, diagnosed from outside while it trains and while it hangs in one way after the other."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.diagnose.conftest import TORCHRUN, Commanded, Said, diagnose, start_commanded
from tests.support.processes import is_alive, read_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("py-spy")

CASES = [
    ("block", "rank_blocked", r"has waited at least \d+ s in fetch_vocabulary_update \(commanded\.py:\d+\)"),
    ("spin", "rank_spinning", r"has been running in the same few lines for at least \d+ s, at wait_for_flag"),
    ("gil", "gil_held", r"has held the GIL for at least \d+ s in hold_the_gil \(commanded\.py:\d+\)"),
]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commanded]:
    starter, commanded = start_commanded(tmp_path_factory.mktemp("torchrun"), TORCHRUN)
    try:
        yield commanded
    finally:
        starter.close()


def ask_of(job: Commanded, *arguments: str) -> Said:
    return diagnose("--pid", str(job.run.pid), "--gap", "1", *arguments, cwd=job.folder)


def ask_until(job: Commanded, is_seen: Callable[[Said], bool], what: str, *arguments: str) -> Said:
    """Ask again where py-spy took too long, as on a busy machine."""
    found = wait_until(lambda: said if is_seen(said := ask_of(job, *arguments)) else None, 60, what)
    assert found is not None
    return found


@pytest.mark.leaks("process", "fd")  # the job is the module's
def test_one_job_in_every_state(job: Commanded) -> None:
    """In one test, as each state is left before the next; what cannot be left comes last."""
    healthy(job)
    for fault, cause, words in CASES:
        hanging(job, fault, cause, words)
    stopped(job)
    healthy(job)
    astray(job)


def healthy(job: Commanded) -> None:
    told = wait_until(lambda: healthy_or_none(job), 30, "a healthy verdict")
    assert (told.verdict, told.culprits, told.cause) == ("healthy", [], None)
    assert [line.rank for line in told.ranks] == [0, 1]
    assert told.target.world_size == 2


def healthy_or_none(job: Commanded):  # type: ignore[no-untyped-def]
    said = ask_of(job, "--json")
    return said.told if said.code == 0 else None


def hanging(job: Commanded, fault: str, cause: str, words: str) -> None:
    job.suffer(fault)
    said = ask_until(job, lambda said: said.told.cause == cause, cause, "--json")
    told = said.told
    assert said.code == 3
    assert (told.verdict, told.kind, told.cause) == ("hang", "hang", cause), told.summary
    assert [(c.rank, c.local_rank, c.pid) for c in told.culprits] == [(1, 1, job.pid_of(1))]
    assert re.search(words, told.summary), told.summary
    assert "rank 0 waits for it in all_reduce" in told.summary
    assert told.evidence["waiting"] == [0]
    assert [(line.rank, line.is_culprit) for line in told.ranks] == [(0, False), (1, True)]
    assert told.ranks[0].doing == "waiting" and told.ranks[0].waits_in == "all_reduce"
    assert 0.5 < told.confidence < 0.95
    assert told.advice
    assert ["py-spy", "dump", "--native", "--pid", str(job.pid_of(1))] in [step.command for step in told.next]
    job.release(fault)


def stopped(job: Commanded) -> None:
    pid = job.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    said = ask_until(job, lambda said: "rank_stopped" in said.out, "a stopped rank")
    assert said.code == 3
    assert said.out.startswith("hang · rank_stopped · 99% sure")
    assert "Rank 1 on " in said.out and "has been stopped by a signal" in said.out
    assert f"kill -CONT {pid}" in said.out and "(changes something)" in " ".join(said.out.split())
    process = read_process(pid)
    assert process is not None and process.state == "T", "a diagnosis changes nothing"
    os.kill(pid, signal.SIGCONT)


def astray(job: Commanded) -> None:
    job.suffer("astray")
    told = ask_until(job, lambda said: said.told.cause == "collective_mismatch", "a mismatch", "--json").told
    assert (told.verdict, told.cause, told.culprits) == ("hang", "collective_mismatch", [])
    assert "all_reduce" in told.summary and "barrier" in told.summary
    assert is_alive(job.run.pid)


def test_one_rank_is_enough_to_find_its_peers(job: Commanded, tmp_path: Path) -> None:
    told = diagnose("--pid", str(job.pid_of(1)), "--gap", "0.5", "--json", cwd=tmp_path).told
    assert [line.rank for line in told.ranks] == [0, 1]
    assert any("peers of the same job" in unseen.why for unseen in told.unseen)


def test_without_a_run_the_jobs_there_are_are_named(job: Commanded, tmp_path: Path) -> None:
    said = diagnose(cwd=tmp_path)
    assert said.code == 1
    assert f"guardctl diagnose --pid {job.run.pid} " in said.err
