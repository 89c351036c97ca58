"""Slurm's programs: missing, slow, hanging, refusing; and what they print."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrun.slurm.client import commands
from guardrun.slurm.client.commands import (
    Failure,
    FailureKind,
    Slurm,
    clean_for_submission,
    explain,
    parse_fields,
)
from guardrun.slurm.client.jobs import StopCause, parse_job, read_job, stop_cause
from guardrun.slurm.client.nodes import parse_node, parse_partition
from guardrun.slurm.client.requeue import RequeueState, requeue
from tests.slurm.client.fake_slurm import JOB, FakeSlurm
from tests.support.processes import read_all


def test_a_missing_program_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_FOLDERS", ())
    answer = Slurm({"PATH": "/nonexistent"}).run("scontrol", "ping")
    assert answer == Failure(FailureKind.MISSING, "there is no program scontrol here")


def test_a_hanging_program_is_ended_with_its_children(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm = fake_slurm(timeout_s=0.3, scontrol="sleep 4321 & sleep 4321")
    began_s = time.monotonic()
    answer = slurm.run("scontrol", "show", "job")
    assert answer == Failure(FailureKind.SILENT, "scontrol did not answer within 0.3 s")
    assert time.monotonic() - began_s < 30
    deadline_s = time.monotonic() + 30
    while left := [one for one in read_all() if one.command == "sleep 4321" and one.state not in "ZX"]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_update error: Invalid user id", FailureKind.REFUSED),
        ("2_3,7: Access/permission denied", FailureKind.REFUSED),
        ("slurm_load_jobs error: Invalid job id specified", FailureKind.UNKNOWN),
        ("Node n9 not found", FailureKind.UNKNOWN),
        ("slurm_load_partitions: Unable to contact slurm controller (connect failure)", FailureKind.SILENT),
        ("slurm_update error: Requested operation is presently disabled", FailureKind.FAILED),
        ("", FailureKind.FAILED),
    ],
)
def test_what_slurm_says(said: str, kind: FailureKind) -> None:
    failure = explain("scontrol", said, 1)
    assert failure.kind is kind
    assert said in failure.text


def test_output_that_is_no_text_is_an_answer(fake_slurm: FakeSlurm) -> None:
    slurm = fake_slurm(scontrol=r"printf 'JobId=5 JobName=\377 UserId=a(1) GroupId=b(2) JobState=RUNNING\n'")
    job = read_job("5", slurm)
    assert not isinstance(job, Failure) and job.state == "RUNNING"


def test_an_argument_that_is_none_is_an_answer(fake_slurm: FakeSlurm) -> None:
    answer = fake_slurm(scontrol="true").run("scontrol", "a\0b")
    assert isinstance(answer, Failure) and answer.kind is FailureKind.FAILED


def test_orders_follow_one_another_and_are_no_shell(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm = fake_slurm(scontrol=f'echo "$#:$*" >> {tmp_path}/said; [ "$1" != fails ]')
    assert slurm.run_unstoppable(["scontrol", "a", "$(touch x) 'y'"], ["scontrol", "b"]) == ""
    assert (tmp_path / "said").read_text() == "2:a $(touch x) 'y'\n1:b\n"
    assert isinstance(slurm.run_unstoppable(["scontrol", "fails"], ["scontrol", "never"]), Failure)
    assert "never" not in (tmp_path / "said").read_text()


def test_fields_with_blanks() -> None:
    assert parse_fields("A=1 B=two words  of it = x C/D=3 A=9 E=") == {
        "A": "1",
        "B": "two words  of it = x",
        "C/D": "3",
        "E": "",
    }


def test_a_job_whose_name_lies() -> None:
    job = parse_job(JOB)
    assert (job.name, job.user, job.state) == ("we ird UserId=1 JobState=FAILED", "root", "RUNNING")
    assert (job.job, job.nodes, job.excluded, job.node_count) == ("2_7", ("n1", "n2"), "n4", 2)
    assert (job.restarts, job.may_requeue, job.is_batch) == (1, True, True)
    assert (job.end_wall_s, job.preempt_wall_s) == (1795266798.0, None)
    assert job.command == "/x/run me.sh --a=1"


def test_a_node_whose_reason_lies() -> None:
    line = "NodeName=n3 OS=Linux 6 #1 SMP State=DOWN*+DRAIN Partitions=main,b Gres=gpu:2 "
    node = parse_node(line + 'Reason=x = "y" State=IDLE [root@5] z [slurm@1795266198]')
    assert (node.name, node.states, node.partitions) == ("n3", {"DOWN", "DRAIN"}, ("main", "b"))
    assert (node.reason, node.reason_by) == ('x = "y" State=IDLE [root@5] z', "slurm")
    assert parse_node(line).reason == ""


@pytest.mark.parametrize(
    ("changes", "own_restarts", "cause"),
    [
        ({}, 1, StopCause.NONE),
        ({}, 0, StopCause.REQUEUED),
        ({"preempt_wall_s": 1795266300.0}, 1, StopCause.PREEMPTED),
        ({"end_wall_s": 1795266350.0}, 1, StopCause.TIME_LIMIT),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, 1, StopCause.TIME_LIMIT),
        ({"state": "COMPLETING", "end_wall_s": 1795266300.0}, 1, StopCause.CANCELLED),
        ({"state": "COMPLETING"}, 0, StopCause.REQUEUED),
        ({"state": "NODE_FAIL"}, 1, StopCause.NODE_FAILED),
    ],
)
def test_why_a_job_is_ended(changes: dict[str, object], own_restarts: int, cause: StopCause) -> None:
    job = parse_job(JOB)._replace(**changes)  # type: ignore[arg-type]
    assert stop_cause(job, own_restarts, 1795266300.0) is cause


@pytest.mark.parametrize(
    ("field", "says"),
    [("BatchFlag=0", "not submitted by sbatch"), ("Requeue=0", "--no-requeue"), ("JobState=TIMEOUT", "is over")],
)
def test_a_job_that_cannot_start_again_is_not_requeued(fake_slurm: FakeSlurm, field: str, says: str) -> None:
    name = field.partition("=")[0]
    line = " ".join(field if word.startswith(f"{name}=") else word for word in JOB.split(" "))
    done = requeue("2_7", ["n1"], fake_slurm(scontrol=f"[ $1 = show ] && echo '{line}'"))
    assert done.state is RequeueState.IMPOSSIBLE and says in done.text


def test_who_submits_from_within_a_job_hands_nothing_of_it_on() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "PATH": "/bin"}
    assert clean_for_submission(environ) == {"SLURM_CONF": "/c", "SBATCH_ACCOUNT": "a", "PATH": "/bin"}


def test_the_environment_of_a_question_is_its_own(fake_slurm: FakeSlurm) -> None:
    assert fake_slurm(scontrol='echo "$SLURM_TIME_FORMAT $LC_ALL"').run("scontrol") == "%s C\n"
    assert "SLURM_TIME_FORMAT" not in os.environ


WORDS = st.sampled_from(
    ["JobId=", "JobName=", " UserId=a(1)", " GroupId=", "NodeList=n[1-", "State=", " Reason=", "[", "=", " "]
)


@given(st.lists(WORDS | st.text(max_size=8), max_size=12).map("".join))
def test_whatever_is_printed_is_read_somehow(text: str) -> None:
    """A newer Slurm's words, or a user's: nothing of it may raise."""
    assert parse_job(text).node_count >= 0
    assert isinstance(parse_node(text).states, frozenset)
    assert parse_partition(text).node_count >= 0
    assert explain("scontrol", text, 1).text
