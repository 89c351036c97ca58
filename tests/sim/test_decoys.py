"""Healthy runs that look suspicious: nothing is told as a hang, and nothing is stopped."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.checks import check_healthy
from tests.sim.cluster import Cluster
from tests.sim.training import Plan


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("decoy", act.BUSY_DECOYS, ids=lambda decoy: decoy.name)
def test_ten_busy_minutes_are_no_hang(decoy: Activity, ranks: int) -> None:
    cluster = Cluster(ranks)
    cluster.do(decoy, global_rank=0, at_s=150, seconds=600)
    cluster.run(until_s=1000)
    check_healthy(cluster)


@pytest.mark.parametrize("decoy", act.BUSY_DECOYS, ids=lambda decoy: decoy.name)
def test_nor_are_they_on_all_ranks_at_once(decoy: Activity) -> None:
    cluster = Cluster(ranks=8)
    for rank in range(8):
        cluster.do(decoy, global_rank=rank, at_s=150, seconds=600)
    cluster.run(until_s=1000)
    check_healthy(cluster)


@pytest.mark.parametrize("decoy", act.BUSY_DECOYS, ids=lambda decoy: decoy.name)
def test_nor_at_the_start(decoy: Activity) -> None:
    cluster = Cluster(ranks=8)
    for rank in range(8):
        cluster.do(decoy, global_rank=rank, at_s=2, seconds=600)
    cluster.run(until_s=1000)
    check_healthy(cluster)


@pytest.mark.parametrize("decoy", [act.PAUSING, act.DATA_SLOW], ids=lambda decoy: decoy.name)
@pytest.mark.parametrize("seconds", [5, 19])
def test_a_pause_that_ends_is_no_hang(decoy: Activity, seconds: float) -> None:
    cluster = Cluster(ranks=8)
    for n in range(10):
        cluster.do(decoy, global_rank=n % 8, at_s=100 + 60 * n, seconds=seconds)
    cluster.run(until_s=800)
    check_healthy(cluster)


def test_a_data_pause_of_all_ranks() -> None:
    cluster = Cluster(ranks=8)
    for rank in range(8):
        cluster.do(act.DATA_SLOW, global_rank=rank, at_s=100, seconds=45)
    cluster.run(until_s=300)
    check_healthy(cluster)


@pytest.mark.parametrize("first_step_s", [30, 300, 3000])
def test_a_slow_first_step(first_step_s: float) -> None:
    cluster = Cluster(ranks=8, plan=Plan(first_step_s=first_step_s))
    cluster.run(until_s=first_step_s + 300)
    check_healthy(cluster)


def test_long_saves_by_rank_0_every_few_minutes() -> None:
    cluster = Cluster(ranks=8, plan=Plan(save_every_s=300, save_s=120))
    cluster.run(until_s=3600)
    check_healthy(cluster)


def test_a_process_that_is_stopped_for_a_moment() -> None:
    cluster = Cluster(ranks=8)
    for n in range(20):
        cluster.stop_process(global_rank=3, at_s=100 + 10 * n, seconds=1.9)
    cluster.run(until_s=400)
    check_healthy(cluster)


def test_a_program_that_limits_the_cpu_by_stopping_processes_half_of_the_time() -> None:
    """cpulimit and the like: what a report sees as stopped has been let run in between."""
    cluster = Cluster(ranks=2, plan=Plan(step_s=0.1))
    for n in range(1500):
        cluster.stop_process(global_rank=1, at_s=100 + 0.2 * n, seconds=0.1)
    cluster.run(until_s=500)
    check_healthy(cluster)
    assert cluster.looks < 100


def test_all_wait_while_one_saves_in_the_background() -> None:
    """An asynchronous save: main threads wait in a collective, bytes move all the same."""
    saving = Activity("saving behind a barrier", stacks=act.WAITING.stacks, in_collective="barrier", io=1e8)
    cluster = Cluster(ranks=8)
    cluster.do(saving, global_rank=0, at_s=100, seconds=600)
    cluster.run(until_s=800)
    check_healthy(cluster)


def test_hours_without_hooks() -> None:
    """Nothing counts progress: whatever the looks show by chance must not add up to a hang."""
    for seed in range(3):
        cluster = Cluster(ranks=8, plan=Plan(has_hooks=False), seed=seed)
        cluster.run(until_s=3 * 3600)
        check_healthy(cluster)


@pytest.mark.parametrize("seconds", [6, 60, 7200])
def test_a_frozen_job_is_nobodys_hang(seconds: float) -> None:
    cluster = Cluster(ranks=8)
    cluster.freeze(at_s=100, seconds=seconds)
    cluster.freeze(at_s=103, seconds=seconds)
    cluster.pause(global_rank=2, at_s=200, seconds=15)
    cluster.freeze(at_s=212, seconds=seconds)
    cluster.run(until_s=500 + 4 * seconds)
    check_healthy(cluster)
    assert cluster.engine.state.ledger.spent_s["other"] == pytest.approx(3 * seconds, abs=2)


def test_a_supervisor_that_was_stopped_or_killed_blames_nobody_for_it() -> None:
    cluster = Cluster(ranks=8)
    cluster.stop_supervisor(at_s=100, seconds=90)
    cluster.restart_supervisor(at_s=300, seconds=45)
    cluster.restart_supervisor(at_s=400, seconds=1, by_replay=False)
    cluster.run(until_s=600)
    check_healthy(cluster)


def test_uneven_ends_are_no_hang() -> None:
    cluster = Cluster(ranks=8, plan=Plan(total_steps=100))
    cluster.evaluate(global_rank=0, at_s=50, seconds=400)
    cluster.run(until_s=1000)
    assert cluster.summary is not None and cluster.summary.outcome == "finished"
    assert cluster.incidents == {}


def test_collections_on_all_ranks_at_once_hold_nobody_up() -> None:
    cluster = Cluster(ranks=8)
    for rank in range(8):
        cluster.collect(global_rank=rank, at_s=100, seconds=3)
    cluster.run(until_s=200)
    check_healthy(cluster)


def test_one_gpu_or_cpu_bound_rank_for_a_day() -> None:
    cluster = Cluster(ranks=1, plan=Plan(step_s=5, save_every_s=1800, save_s=20))
    cluster.run(until_s=86400)
    check_healthy(cluster)


def test_the_floor_can_be_low() -> None:
    cluster = Cluster(ranks=2, settings=ev.Settings(floor_s=0))
    cluster.run(until_s=300)
    check_healthy(cluster)
