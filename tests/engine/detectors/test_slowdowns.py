"""Slow data and lost speed: told for what they are, once, and never of a job that is well."""

from __future__ import annotations

import random

import pytest

from guardrun.supervisor.engine.model import actions as ac
from tests.engine.conftest import Told
from tests.engine.slow_job import HEALTHY, SlowJob, Work, noisy, slower


@pytest.fixture
def job(told: Told) -> SlowJob:
    return SlowJob(told)


def only(job: SlowJob, cause: str) -> ac.Incident:
    assert job.incidents == [cause]
    return next(iter(job.told.incidents.values()))


# Data --------------------------------------------------------------------------------------------------


def test_ranks_that_all_wait_for_data(job: SlowJob) -> None:
    job.train(140, noisy(1), data=lambda rank, step: 0.2)
    incident = only(job, "dataloader_bound")
    assert (incident.kind, incident.action, incident.culprits) == ("slowdown", "none", [])
    assert incident.summary.startswith("The ranks wait for data: 37% of the last 6")
    assert incident.summary.endswith("without, a step would take 0.34 s instead of 0.54 s.")
    assert "num_workers" in incident.advice
    job.train(600, noisy(1), data=lambda rank, step: 0.2)
    assert job.incidents == ["dataloader_bound"], "once a run"


def test_one_that_waits_for_data_keeps_all(job: SlowJob) -> None:
    job.train(300, noisy(2), data=lambda rank, step: 0.2 if rank == 3 else 0.0)
    incident = only(job, "dataloader_bound")
    assert [culprit.rank for culprit in incident.culprits] == [3]
    assert incident.summary.startswith("Rank 3 on node-1 waits for data, and the others for that: ")


def test_who_waits_for_data_instead_of_for_others_costs_nothing(job: SlowJob) -> None:
    job.train(600, slower(noisy(3), {2: 1.6}), data=lambda rank, step: 0.15 if rank != 2 else 0.0)
    assert job.incidents == []


def test_a_single_rank(told: Told) -> None:
    job = SlowJob(told, ranks=1).train(140, noisy(4), data=lambda rank, step: 0.2)
    assert only(job, "dataloader_bound").summary.startswith("Rank 0 on node-0 waits for data: 38%")


def test_data_that_comes_in_time_mostly(job: SlowJob) -> None:
    chance = random.Random(5)
    job.train(3600, noisy(5), data=lambda rank, step: 2.0 if rank == 0 and chance.random() < 0.01 else 0.002)
    assert job.incidents == []


# Speed -------------------------------------------------------------------------------------------------


def test_steps_that_take_longer_on_all_ranks_are_told_for_what_they_are(job: SlowJob) -> None:
    work = noisy(6)
    job.train(300, work)
    began_s = job.now_s
    job.train(200, slower(work, dict.fromkeys(range(8), 1.5)))
    incident = only(job, "throughput_drop")
    assert (incident.kind, incident.action, incident.culprits) == ("slowdown", "none", [])
    assert incident.onset_s == pytest.approx(began_s, abs=30)
    assert "Steps have taken 1.5 times as long as before" in incident.summary
    assert "the ranks' own work, of all alike" in incident.summary
    assert "longer sequences" in incident.advice
    assert incident.recovered_s is None
    job.train(200, work)
    assert job.told.state.incidents[incident.id].recovered_s is not None


def test_a_slower_network_is_told_as_such(job: SlowJob) -> None:
    work = noisy(7)
    job.train(300, work)
    job.communication_s = 0.15
    job.train(200, work)
    assert only(job, "throughput_drop").evidence["part"] == "rest"


def test_uneven_work_names_nobody(told: Told) -> None:
    work = noisy(8)
    job = SlowJob(told, ranks_a_node=8).train(300, work)
    job.train(300, slower(work, {1: 1.6, 2: 1.5, 6: 1.5}))
    incident = only(job, "throughput_drop")
    assert incident.evidence["part"] == "uneven" and incident.culprits == []


def test_a_straggler_is_not_told_twice(job: SlowJob) -> None:
    work = noisy(9)
    job.train(300, work).train(600, slower(work, {4: 1.5}))
    assert job.incidents == ["straggler"]


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("name", ["all alike", "pipeline stages", "rank 0 logs and saves"])
def test_no_healthy_job_loses_speed(told: Told, name: str, spread: float, ranks: int) -> None:
    job = SlowJob(told, ranks=ranks).train(2700, HEALTHY[name](noisy(ranks, spread=spread)))
    assert job.incidents == []


def phases(work: Work) -> Work:
    """For a minute of every ten, steps take half as long again (a regularisation, another data set)."""
    return lambda rank, step: work(rank, step) * (1.5 if step % 2000 < 150 else 1.0)


def test_what_passes_is_not_told(job: SlowJob) -> None:
    assert job.train(5400, phases(noisy(10))).incidents == []
