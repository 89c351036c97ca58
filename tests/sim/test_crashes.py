"""Stories of crashes: the right one is blamed whoever falls first, and the run goes on or ends as it should."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.sim.cluster import Cluster
from tests.sim.training import Plan

VALUE_ERROR = ev.ErrorRecord(error="ValueError", message="bad batch", frames=[("/home/user/train.py", "train", 60)])


def check(cluster: Cluster) -> None:
    cluster.check_end()
    cluster.replay()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("exitcode", "cause"),
    [(-9, "killed"), (-11, "segfault"), (-6, "abort"), (-7, "bus_error"), (139, "segfault"), (3, "exit_code")],
)
def test_the_one_that_fell_is_blamed_not_its_peers(exitcode: int, cause: str, seed: int) -> None:
    cluster = Cluster(ranks=8, seed=seed)
    cluster.crash(global_rank=5, at_s=100, exitcode=exitcode)
    cluster.run(until_s=300)
    [incident] = cluster.incidents.values()
    assert (incident.kind, incident.cause, cluster.named(incident)) == ("crash", cause, [5])
    assert incident.detected_s - 100 < 2
    assert cluster.stops[0][0] - 100 < 0.1
    assert incident.recovered_s is not None
    check(cluster)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("exitcode", [-11, -9])
def test_a_core_dump_that_takes_longer_than_its_peers_take_to_notice(exitcode: int, seed: int) -> None:
    cluster = Cluster(ranks=8, seed=seed)
    cluster.crash(global_rank=5, at_s=100, exitcode=exitcode, lag_s=1.2)
    cluster.run(until_s=300)
    [incident] = cluster.incidents.values()
    assert cluster.named(incident) == [5]
    check(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_an_exception_is_told_with_its_place(seed: int) -> None:
    cluster = Cluster(ranks=8, seed=seed)
    cluster.crash(global_rank=2, at_s=100, error=VALUE_ERROR)
    cluster.run(until_s=300)
    [incident] = cluster.incidents.values()
    assert (incident.cause, cluster.named(incident)) == ("exception", [2])
    assert "raised ValueError: bad batch in train (train.py:60)" in incident.summary
    check(cluster)


def test_an_exception_whose_message_got_lost_is_read_from_its_file() -> None:
    cluster = Cluster(ranks=8)
    cluster.launcher.raised_gets_lost = True
    cluster.crash(global_rank=2, at_s=100, error=VALUE_ERROR)
    cluster.run(until_s=300)
    assert (cluster.last.cause, cluster.named(cluster.last)) == ("exception", [2])
    check(cluster)


def test_the_same_exception_at_the_same_step_twice_ends_the_run() -> None:
    cluster = Cluster(ranks=8)
    cluster.poison_at(150, lambda job: cluster.launcher.rank_falls(2, 1, VALUE_ERROR, 0.0))
    cluster.run(until_s=2000)
    assert cluster.summary is not None
    assert (cluster.summary.outcome, cluster.summary.exit_code) == ("gave_up", 1)
    assert cluster.summary.reason == "the same error at the same step twice"
    assert [i.action for i in cluster.incidents.values()] == ["restart", "give_up"]
    check(cluster)


def test_a_kill_at_the_same_step_is_tried_until_it_is_poison() -> None:
    cluster = Cluster(ranks=8)
    cluster.poison_at(150, lambda job: cluster.launcher.rank_falls(2, -9, None, 0.0))
    cluster.run(until_s=2000)
    assert cluster.summary is not None and cluster.summary.exit_code == 137
    assert [i.cause for i in cluster.incidents.values()] == ["killed"] * 3 + ["poison_step"]
    assert cluster.last.evidence["own_kind"] == "crash"
    check(cluster)


def test_a_missing_module_is_not_tried_again() -> None:
    cluster = Cluster(ranks=2)
    error = ev.ErrorRecord(error="ModuleNotFoundError", message="No module named 'flash_attn'")
    cluster.crash(global_rank=0, at_s=3, error=error)
    cluster.run(until_s=100)
    assert cluster.summary is not None
    assert (cluster.summary.restarts, cluster.summary.reason) == (0, "it would only happen again")
    assert cluster.last.cause == "import_error"
    check(cluster)


def test_all_ranks_raise_the_same() -> None:
    cluster = Cluster(ranks=8)
    for rank in range(8):
        cluster.crash(global_rank=rank, at_s=100 + rank / 1000, error=VALUE_ERROR)
    cluster.run(until_s=300)
    assert cluster.last.cause == "exception"
    assert set(cluster.named(cluster.last)) >= {0}
    check(cluster)


def test_a_rank_that_raised_but_does_not_end_is_stopped() -> None:
    cluster = Cluster(ranks=2, seed=3)
    cluster.crash(global_rank=1, at_s=100, error=VALUE_ERROR, lag_s=10_000)
    cluster.run(until_s=400)
    assert (cluster.last.cause, cluster.named(cluster.last)) == ("exception", [1])
    assert cluster.stops and cluster.stops[0][0] < 125
    check(cluster)


def test_an_exception_that_training_survived_stops_nobody() -> None:
    """A logging library calls sys.excepthook for one that it has caught."""
    cluster = Cluster(ranks=8)
    error = ev.ErrorRecord(error="ValueError", message="caught", at_s=100.0)
    cluster.at(100, lambda: cluster.feed(ev.UncaughtExceptionReported(attempt=0, global_rank=3, error=error)))
    cluster.run(until_s=300)
    assert cluster.incidents == {} and cluster.stops == []
    cluster.hang(global_rank=4, at_s=310)
    cluster.run(until_s=400)
    assert cluster.named(cluster.last) == [4]
    check(cluster)


def test_a_kill_among_2048_ranks() -> None:
    cluster = Cluster(ranks=2048, is_journalled=False)
    cluster.kill(global_rank=1001, at_s=20)
    cluster.run(until_s=45)
    assert (cluster.last.cause, cluster.named(cluster.last)) == ("killed", [1001])
    assert cluster.stops[0][0] - 20 < 0.1
    assert cluster.last.detected_s - 20 < 2
    assert len(cluster.last.evidence["exits"]) <= 64
    cluster.check_end()


def test_a_fall_under_a_hold_leaves_the_others_alone_until_it_is_lifted() -> None:
    cluster = Cluster(ranks=2, seed=1)
    cluster.hold(True, at_s=90)
    cluster.crash(global_rank=1, at_s=100, exitcode=-11)
    cluster.run(until_s=100.5)
    assert cluster.stops == []
    cluster.hold(False, at_s=200)
    cluster.run(until_s=400)
    assert cluster.last.cause == "segfault" and cluster.last.recovered_s is not None
    check(cluster)


def test_a_run_that_is_only_watched_ends_with_its_first_crash() -> None:
    cluster = Cluster(ranks=8, settings=ev.Settings(act=False))
    cluster.kill(global_rank=1, at_s=100)
    cluster.run(until_s=300)
    assert cluster.summary is not None
    assert (cluster.summary.outcome, cluster.summary.exit_code, cluster.summary.restarts) == ("failed", 137, 0)
    assert cluster.last.action == "none"
    check(cluster)


def test_ranks_that_cannot_be_started() -> None:
    cluster = Cluster(ranks=2)
    cluster.launcher.start_error = "no memory"
    cluster.run(until_s=10)
    assert cluster.summary is not None and cluster.summary.outcome == "failed"
    assert "no memory" in cluster.summary.reason


def test_training_that_ends_well() -> None:
    cluster = Cluster(ranks=8, plan=Plan(total_steps=100))
    cluster.run(until_s=1000)
    assert cluster.summary is not None
    assert (cluster.summary.outcome, cluster.summary.exit_code, cluster.summary.last_step) == ("finished", 0, 100)
    assert cluster.summary.goodput > 0.8
    check(cluster)


def test_a_process_that_lingers_after_its_scripts_end_is_told_and_waited_for_as_torchrun_would() -> None:
    cluster = Cluster(ranks=8, plan=Plan(total_steps=100))
    cluster.launcher.lingering, cluster.launcher.lingers_s = {3}, 3000.0
    cluster.run(until_s=1000)
    [incident] = cluster.incidents.values()
    assert (cluster.named(incident), incident.action) == ([3], "none")
    assert "come to the end of the script" in incident.summary
    assert 300 <= incident.detected_s - incident.onset_s < 330
    assert not cluster.is_over
    cluster.run(until_s=5000)
    assert cluster.summary is not None and not cluster.stops
    assert (cluster.summary.outcome, cluster.summary.exit_code, cluster.summary.restarts) == ("finished", 0, 0)
    cluster.replay()


@pytest.mark.parametrize("signum", [2, 15])
@pytest.mark.parametrize("at_s", [0.12, 0.3, 2.0, 50.0, 100.2, 101.5, 106.0, 112.0])
def test_a_signal_ends_the_run_whenever_it_comes(signum: int, at_s: float) -> None:
    cluster = Cluster(ranks=8)
    cluster.kill(global_rank=1, at_s=100)
    cluster.signal(signum, at_s)
    cluster.run(until_s=200)
    assert cluster.summary is not None
    assert (cluster.summary.outcome, cluster.summary.exit_code) == ("interrupted", 128 + signum)
    assert len(cluster.summary.attempts) <= 2
    check(cluster)


@pytest.mark.parametrize("kind", [ac.ReadExits, ac.ChooseCheckpoint, ac.StartAttempt, ac.StopAttempt])
def test_lost_answers_and_orders_are_asked_for_again(kind: type) -> None:
    cluster = Cluster(ranks=8)
    cluster.at(90, lambda: cluster.lose(kind, 2))
    cluster.kill(global_rank=1, at_s=100)
    cluster.run(until_s=400)
    assert cluster.last.recovered_s is not None
    check(cluster)


@pytest.mark.parametrize("kind", [ac.ReadExits, ac.ChooseCheckpoint])
@pytest.mark.parametrize("seconds", [31, 45, 100])
def test_answers_that_always_come_late_count_all_the_same(kind: type, seconds: float) -> None:
    cluster = Cluster(ranks=8)
    cluster.delay(kind, seconds)
    cluster.kill(global_rank=1, at_s=100)
    cluster.run(until_s=600)
    assert cluster.last.recovered_s is not None
    check(cluster)


@pytest.mark.parametrize("seed", range(4))
def test_a_culprit_that_takes_long_to_die_is_named_when_it_has(seed: int) -> None:
    cluster = Cluster(ranks=8, seed=seed)
    cluster.crash(global_rank=5, at_s=100, exitcode=-11, lag_s=6)
    cluster.run(until_s=103)
    told = cluster.incidents["001"]
    assert cluster.named(told) == [] and told.detected_s - 100 < 2.5
    cluster.run(until_s=300)
    [incident] = cluster.incidents.values()
    assert (incident.cause, cluster.named(incident)) == ("segfault", [5])
    assert incident.recovered_s is not None
    check(cluster)
