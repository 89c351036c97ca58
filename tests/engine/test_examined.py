"""While a person has ranks examined they are slow for that reason, and nobody is blamed for it."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.slow_job import SlowJob, noisy, slower

LEARNED_S = 240.0
WORK = noisy(7)
TRACED = slower(WORK, {5: 2.5})


@pytest.fixture
def job(told: Told) -> SlowJob:
    return SlowJob(told).train(LEARNED_S, WORK)


def ask(job: SlowJob, seconds: float = 60.0, attempt: int = 0) -> list[ac.Action]:
    asked = ev.ExaminationAsked(attempt=attempt, global_ranks=[5], what="allocations", seconds=seconds, who="ada")
    return job.told.tell(asked, job.now_s)


def test_it_is_said_who_asked(job: SlowJob) -> None:
    (said,) = ask(job)
    assert isinstance(said, ac.Say)
    assert said.text == "ada has rank 5 examined for 60 s (allocations)" and said.level == "info"


def test_a_rank_that_is_slow_while_it_is_examined_is_no_straggler(job: SlowJob) -> None:
    ask(job)
    job.train(65, TRACED).train(200, WORK)
    assert job.incidents == []


def test_time_and_again(job: SlowJob) -> None:
    for _ in range(4):
        ask(job)
        job.train(65, TRACED).train(70, WORK)
    assert job.incidents == []


def test_without_anybody_asking_it_is_one(job: SlowJob) -> None:
    job.train(65, TRACED).train(200, WORK)
    assert job.incidents == ["straggler"]


def test_one_that_stays_slow_is_told_afterwards(job: SlowJob) -> None:
    ask(job)
    job.train(180, TRACED)
    assert job.incidents == ["straggler"]
    (incident,) = job.told.incidents.values()
    assert [culprit.rank for culprit in incident.culprits] == [5]


def test_a_request_to_another_attempt_changes_nothing(job: SlowJob) -> None:
    assert ask(job, attempt=1) == []
    job.train(65, TRACED).train(60, WORK)
    assert job.incidents == ["straggler"]


def test_a_drop_that_all_share_is_told_after_it_only(told: Told) -> None:
    """Everybody waits for the rank that is traced: that is no drop of throughput either."""
    job = SlowJob(told).train(400, WORK)
    for _ in range(3):
        ask(job)
        job.train(70, slower(WORK, dict.fromkeys(range(8), 2.0)))
    assert job.incidents == []
    job.train(200, slower(WORK, dict.fromkeys(range(8), 2.0)))
    assert job.incidents == ["throughput_drop"]
