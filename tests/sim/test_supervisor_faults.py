"""The supervisor is killed or stopped at every moment of an incident: the run ends as it would have."""

from __future__ import annotations

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.sim.cluster import Cluster

VALUE_ERROR = ev.ErrorRecord(error="ValueError", message="bad batch", frames=[("/home/user/train.py", "train", 60)])
MOMENTS = [99.5, 100.02, 100.2, 100.45, 100.7, 101.5, 105.0, 110.2, 110.6, 111.5, 116.0, 125.0, 130.1, 131.0, 141.0]


@pytest.mark.parametrize("by_replay", [True, False])
@pytest.mark.parametrize("down_s", [0.4, 5.0])
@pytest.mark.parametrize("at_s", MOMENTS)
def test_killed_around_a_crash(at_s: float, down_s: float, by_replay: bool) -> None:
    cluster = Cluster(ranks=8)
    cluster.crash(global_rank=5, at_s=100, exitcode=-11)
    cluster.restart_supervisor(at_s, down_s, by_replay=by_replay)
    cluster.run(until_s=400)
    [incident] = cluster.incidents.values()
    assert (incident.cause, cluster.named(incident)) == ("segfault", [5])
    assert incident.recovered_s is not None
    assert cluster.engine.state.restarts == 1
    cluster.check_end()
    cluster.replay()


@pytest.mark.parametrize("down_s", [0.4, 5.0])
@pytest.mark.parametrize("at_s", MOMENTS)
def test_killed_around_a_hang(at_s: float, down_s: float) -> None:
    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=5, at_s=100)
    cluster.restart_supervisor(at_s, down_s)
    cluster.run(until_s=400)
    [incident] = cluster.incidents.values()
    assert (incident.cause, cluster.named(incident)) == ("rank_blocked", [5])
    assert incident.recovered_s is not None
    cluster.check_end()
    cluster.replay()


@pytest.mark.parametrize("at_s", MOMENTS)
def test_stopped_around_a_hang(at_s: float) -> None:
    cluster = Cluster(ranks=8)
    cluster.hang(global_rank=5, at_s=100)
    cluster.stop_supervisor(at_s, seconds=20)
    cluster.run(until_s=400)
    assert cluster.named(cluster.last) == [5]
    assert cluster.last.recovered_s is not None
    cluster.check_end()
    cluster.replay()


@pytest.mark.parametrize("at_s", [90.0, 100.5, 101.5, 102.6])
def test_a_stopped_rank_is_still_seen_after_time_was_skipped(at_s: float) -> None:
    """A sampler reports changes only: what was known to be stopped must not be forgotten."""
    cluster = Cluster(ranks=8)
    cluster.stop_process(global_rank=5, at_s=100)
    cluster.freeze(at_s, seconds=300)
    cluster.run(until_s=600)
    assert (cluster.last.cause, cluster.named(cluster.last)) == ("rank_stopped", [5])
    cluster.check_end()


def test_a_hang_planted_after_ten_restarts_of_the_supervisor_is_found() -> None:
    cluster = Cluster(ranks=8)
    for n in range(10):
        cluster.restart_supervisor(at_s=50 + 20 * n, seconds=2.0)
    cluster.hang(global_rank=5, at_s=300)
    cluster.run(until_s=400)
    assert cluster.last.detected_s - 300 < 33
    cluster.check_end()
    cluster.replay()
