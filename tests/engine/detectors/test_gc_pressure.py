"""What collections cost a job that trains in step: told where it is much, never on a healthy one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

Collects = Callable[[int, int], float]
"""(rank, second) → seconds that it collected in that second."""


def train(told: Told, collects: Collects, seconds: int, *, step_s: float = 0.5, nodes: int = 1) -> None:
    """Report once a second, from 3 s on; each node tells of its own ranks."""
    world = told.state.world_size
    totals = [5.0] * world  # what imports cost
    for second in range(3, 3 + seconds):
        for rank in range(world):
            totals[rank] = round(totals[rank] + collects(rank, second), 3)
        for node in range(nodes):
            step = 10 + int((second - 2) / step_s)
            at_s = second + 0.9 * node / nodes
            reports = [
                ev.RankReport(global_rank=n, progress=step, progress_s=at_s, step=step, gc_total_s=totals[n])
                for n in range(world)
                if n % nodes == node
            ]
            told.tell(ev.NodeReport(node=f"node-{node}", attempt=told.attempt, ranks=reports), at_s)


def in_turns(seconds: float) -> Collects:
    """Each second another rank collects."""
    return lambda rank, second: seconds if second % 8 == rank else 0.0


@pytest.fixture
def job(told: Told) -> Iterator[Told]:
    yield told.running(ranks=8)


def test_collections_in_turns_add_up(job: Told) -> None:
    train(job, in_turns(0.2), 100)
    (incident,) = job.incidents.values()
    assert (incident.kind, incident.cause, incident.action) == ("slowdown", "gc_pressure", "none")
    assert incident.evidence["share"] == pytest.approx(0.2, abs=0.02)
    assert incident.evidence["is_skewed"] is True
    assert incident.evidence["ranks"] == "0-7"
    assert incident.summary == (
        "Garbage collections cost at least 20% of the last 30 s: Ranks 0-7 on node-a collect, each at steps of its "
        "own, and all wait for each."
    )
    assert '[gc] policy = "freeze"' in incident.advice
    assert 60 < incident.detected_s < 70
    assert job.state.open_incidents == []
    assert incident.recovered_s is None


def test_told_once_a_run_and_never_acted_on(job: Told) -> None:
    train(job, in_turns(0.5), 400)
    assert len(job.incidents) == 1
    assert job.state.verdict_incident == ""


def test_one_rank_that_collects_much_is_named(job: Told) -> None:
    train(job, lambda rank, second: 0.15 if rank == 3 else 0.001, 100)
    (incident,) = job.incidents.values()
    assert [culprit.rank for culprit in incident.culprits] == [3]
    assert "Rank 3 on node-a collects." in incident.summary


def test_what_follows_the_policy_is_advised_otherwise(told: Told) -> None:
    told.running(ranks=2, gc_policy="freeze")
    train(told, lambda rank, second: 0.2, 100)
    (incident,) = told.incidents.values()
    assert "every_steps" in incident.advice and not incident.evidence["is_skewed"]


@pytest.mark.parametrize(
    "collects",
    [
        pytest.param(lambda rank, second: 0.0, id="none"),
        pytest.param(lambda rank, second: 0.08, id="8% at the same time on all"),
        pytest.param(lambda rank, second: 0.6 if second % 8 == 0 else 0.0, id="together, now and then"),
        pytest.param(lambda rank, second: 3.0 if second == 20 else 0.0, id="one long pause"),
        pytest.param(lambda rank, second: 0.5 if 10 <= second < 30 else 0.0, id="a phase of it"),
    ],
)
def test_healthy_jobs_are_left_alone(job: Told, collects: Collects) -> None:
    train(job, collects, 600)
    assert job.incidents == {}


def test_samples_of_nodes_at_other_moments_count_nothing_twice(job: Told) -> None:
    train(job, lambda rank, second: 0.3 if second % 5 == 0 else 0.0, 300, nodes=4)
    assert job.incidents == {}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_it_tells_is_no_more_than_what_was_lost(told: Told, seed: int) -> None:
    """Random collections: in the same second they may have been at the same time, so that the longest is all."""
    chance = random.Random(seed)
    told.running(ranks=8)
    rate, length = chance.uniform(0.0, 0.5), chance.uniform(0.01, 0.3)
    spent = [[length if chance.random() < rate else 0.0 for _ in range(8)] for _ in range(400)]
    train(told, lambda rank, second: spent[second][rank], 390)
    lost = sum(max(row) for row in spent) / len(spent)
    for incident in told.incidents.values():
        assert incident.evidence["share"] >= 0.1
        assert lost > 0.06, "a healthy job"
    if lost > 0.15:
        assert told.incidents


def test_nothing_before_the_first_step_and_nothing_in_slow_steps(told: Told) -> None:
    told.opened(8)
    told.started(at_s=1.0)
    for second in range(2, 200):
        moved = [ev.RankReport(global_rank=n, progress=second, gc_total_s=second * 0.9) for n in range(8)]
        told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=moved), float(second))
    assert told.incidents == {}


def test_a_new_attempt_begins_anew(job: Told) -> None:
    train(job, in_turns(0.5), 40)
    job.crashed()
    job.restarted(step=60)
    assert [incident.cause for incident in job.incidents.values()] == ["segfault"]
