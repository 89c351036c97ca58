"""Who has become slow is told, and why; who is slow for a reason of the job's own is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.health.base.findings import Finding
from tests.engine.conftest import Told
from tests.engine.slow_job import HEALTHY, STAGES, SlowJob, noisy, slower

LEARNED_S = 140.0
"""The warm-up, and the windows that the usual places are learned from."""


@pytest.fixture
def job(told: Told) -> SlowJob:
    return SlowJob(told)


def only(job: SlowJob, cause: str = "straggler") -> ac.Incident:
    assert job.incidents == [cause]
    return next(iter(job.told.incidents.values()))


def test_a_rank_that_becomes_slow_is_told(job: SlowJob) -> None:
    work = noisy(1)
    job.train(LEARNED_S, work)
    began_s = job.now_s
    job.train(110, slower(work, {5: 1.4}))
    incident = only(job)
    assert (incident.kind, incident.action, incident.confidence) == ("slowdown", "none", 0.75)
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(5, "node-2")]
    assert incident.onset_s == pytest.approx(began_s, abs=25)
    assert incident.detected_s - began_s < 110
    assert incident.summary.startswith("Rank 5 on node-2 has become slow: 0.42 s of each step is its own work, 0.30 s")
    assert "who wait for it: steps take 1.4 times as long, for 6" in incident.summary
    assert incident.evidence["excess"]["5"]["now"] == pytest.approx(0.27, abs=0.05)
    assert "guardctl node" in incident.advice
    assert job.told.state.open_incidents == [] and incident.recovered_s is None


def test_it_is_over_when_the_rank_is_as_fast_as_before(job: SlowJob) -> None:
    work = noisy(2)
    job.train(LEARNED_S, work).train(200, slower(work, {5: 1.4})).train(100, work)
    incident = only(job)
    assert incident.recovered_s is not None
    assert job.told.state.detectors.straggler.reported == {}
    job.train(100, slower(work, {5: 1.4}))
    assert job.incidents == ["straggler", "straggler"]


def test_what_comes_and_goes_is_not_told_for_ever(job: SlowJob) -> None:
    work = noisy(3)
    job.train(LEARNED_S, work)
    for _ in range(6):
        job.train(120, slower(work, {5: 1.5})).train(120, work)
    assert job.incidents == ["straggler"] * 3


def test_of_two_ranks_the_one_that_changed_is_named(told: Told) -> None:
    work = noisy(4)
    job = SlowJob(told, ranks=2).train(LEARNED_S, work).train(110, slower(work, {0: 1.3}))
    assert [culprit.rank for culprit in only(job).culprits] == [0]


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_node_of_which_all_ranks_become_slow_is_told_whole(told: Told, nodes: int) -> None:
    work = noisy(5)
    job = SlowJob(told, ranks=4 * nodes, ranks_a_node=4).train(LEARNED_S, work)
    job.train(110, slower(work, dict.fromkeys(range(4, 8), 1.35)))
    incident = only(job)
    assert incident.evidence["ranks"] == "4-7" and incident.evidence["nodes"] == ["node-1"]
    assert incident.summary.startswith("Ranks 4-7 on node-1 have become slow")


def test_one_among_thousands(told: Told) -> None:
    """Their means are told as they come; a thousand ranks' every step would take too long here."""
    ranks, chance = 4000, random.Random(6)
    job = SlowJob(told, ranks=ranks, ranks_a_node=8)
    for period in range(30):
        means = [0.3 * chance.lognormvariate(0.0, 0.01) for _ in range(ranks)]
        if period >= 18:
            means[1234] *= 1.3
        for _ in range(10):
            job._told_steps += 1
            job.step += 1
            step_s = max(means) * 2 + 0.02
            for sums, own in zip(job._sums, means, strict=True):
                sums[0] += step_s
                sums[1] += step_s - 2 * own
            job.now_s += step_s
        job.now_s += 2.0
        job.tell()
    assert [culprit.rank for culprit in only(job).culprits] == [1234]


# What is no straggler ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("spread", [0.02, 0.3, 1.0])
def test_no_healthy_job_has_a_straggler(told: Told, name: str, spread: float, ranks: int) -> None:
    """Until the experts have drifted; with spread 1.0 the longest of a hundred steps takes ten times the median."""
    job = SlowJob(told, ranks=ranks).train(2700, HEALTHY[name](noisy(len(name), spread=spread)))
    assert "straggler" not in job.incidents


@pytest.mark.parametrize("seed", range(3))
def test_uneven_data_is_nobodys_fault(told: Told, seed: int) -> None:
    """Each rank's samples are long for a while, then another's."""
    chance, lengths = random.Random(seed), [1.0] * 8

    def work(rank: int, step: int) -> float:
        if chance.random() < 0.05:
            lengths[rank] = chance.choice([0.5, 1.0, 1.0, 2.0])
        return 0.2 * lengths[rank] * chance.lognormvariate(0.0, 0.1)

    assert SlowJob(told).train(3600, work).incidents == []


def test_a_stage_that_is_slow_from_the_start_is_remarked_at_most(told: Told) -> None:
    said = _say_all(told, lambda: SlowJob(told).train(600, slower(noisy(8), {5: 1.5})))
    assert told.incidents == {}
    assert sum("from the start" in text for text in said) == 1
    assert any(text.startswith("Rank 5 on node-2 has worked longer than the others from the start") for text in said)


def test_a_stage_that_is_not_the_slowest_may_grow(job: SlowJob) -> None:
    """Who is not waited for holds nobody up."""
    work = slower(noisy(9), STAGES)
    job.train(LEARNED_S, work).train(300, slower(work, {5: 1.6}))
    assert job.incidents == []


def test_work_that_moves_from_rank_to_rank_slows_nobody(job: SlowJob) -> None:
    work = noisy(10)
    job.train(LEARNED_S, slower(work, {2: 1.4})).train(300, slower(work, {5: 1.4}))
    assert job.incidents == []


def test_many_at_once_are_uneven_work(told: Told) -> None:
    work = noisy(11)
    job = SlowJob(told, ranks=8, ranks_a_node=8).train(LEARNED_S, work)
    job.train(300, slower(work, dict.fromkeys((1, 3, 4), 1.5)))
    assert "straggler" not in job.incidents


def test_ranks_that_nobody_waits_for_are_not_compared(told: Told) -> None:
    """Eight trainings of their own: nothing is known of waits, and steps differ."""
    job = SlowJob(told)
    for period in range(60):
        job.step += 20
        job.now_s += 10.0
        job._told_steps += 20
        for rank, sums in enumerate(job._sums):
            sums[0] += 10.0 * (1.5 if rank == 3 and period > 20 else 1.0)
        job.tell()
    assert "straggler" not in job.incidents


def test_a_collectors_pauses_are_not_its_work(job: SlowJob) -> None:
    work = noisy(12)
    job.train(LEARNED_S, work).train(300, work, gc=lambda rank, step: 0.2 if rank == 3 else 0.0)
    assert "straggler" not in job.incidents


# Sensors, and what follows -----------------------------------------------------------------------------


def finding(node: str, subject: str = "gpu:GPU-5") -> Finding:
    return Finding(
        id=f"throttle/{subject}",
        cause="throttle",
        subject=subject,
        since_s=1.0,
        told_s=2.0,
        summary="GPU 1 throttles: 88 °C.",
        evidence={},
    )


def tell_sensors(job: SlowJob) -> None:
    devices = {rank: ev.Device(subject=f"gpu:GPU-{rank}", index=rank % 2) for rank in range(8)}
    event = ev.NodeFindingsReported(node="node-2", findings=[finding("node-2")], devices=devices)
    job.told.tell(event, job.now_s)


def test_what_its_nodes_sensors_say_makes_it_certain(job: SlowJob) -> None:
    work = noisy(13)
    job.train(LEARNED_S, work)
    tell_sensors(job)
    job.train(110, slower(work, {5: 1.4}))
    told = [incident for incident in job.told.incidents.values() if incident.cause == "straggler"]
    assert [incident.confidence for incident in told] == [0.9]
    assert "its node says: GPU 1 throttles: 88 °C." in told[0].summary
    assert told[0].culprits[0].gpu == 1


def test_slow_from_the_start_is_told_where_its_sensors_say_why(job: SlowJob) -> None:
    tell_sensors(job)
    job.train(300, slower(noisy(14), {5: 1.4}))
    told = [incident for incident in job.told.incidents.values() if incident.cause == "straggler"]
    assert [incident.confidence for incident in told] == [0.6]
    assert "slower than the others from the start" in told[0].summary


def test_what_all_nodes_say_explains_nobody(told: Told) -> None:
    job = SlowJob(told, ranks=4, ranks_a_node=4)
    told.tell(ev.NodeFindingsReported(node="node-0", findings=[finding("node-0", subject="node")]), job.now_s)
    job.train(300, slower(noisy(15), {1: 1.4}))
    assert "straggler" not in job.incidents


def isolated(job: SlowJob) -> list[str]:
    return sorted(job.told.state.nodes.isolated)


def test_its_node_is_isolated_only_where_the_user_says_so(told: Told) -> None:
    work = noisy(16)
    job = SlowJob(told, responses={"straggler": "isolate"}).train(LEARNED_S, work)
    job.train(110, slower(work, {5: 1.4}))
    assert only(job).action == "isolate_node"
    assert isolated(job) == ["node-2"]
    assert told.phase.value == "running"


@pytest.mark.parametrize(
    ("settings", "ranks_a_node"),
    [({}, 2), ({"responses": {"straggler": "isolate"}, "act": False}, 2), ({"responses": {"straggler": "isolate"}}, 8)],
)
def test_else_nothing_is_done(told: Told, settings: dict[str, object], ranks_a_node: int) -> None:
    work = noisy(17)
    job = SlowJob(told, ranks_a_node=ranks_a_node, **settings).train(LEARNED_S, work)
    job.train(110, slower(work, {5: 1.4}))
    assert only(job).action == "none" and isolated(job) == []


def test_an_isolated_straggler_trains_on_until_the_next_attempt_goes_without_it(told: Told) -> None:
    told.fleet_opened(most=3, spares=1, responses={"straggler": "isolate"})
    told.fleet_started(1.0)
    work = noisy(19)
    job = SlowJob(told, ranks=6).train(LEARNED_S, work).train(110, slower(work, {2: 1.4, 3: 1.4}))
    incident = only(job)
    assert incident.action == "isolate_node" and {culprit.node for culprit in incident.culprits} == {"n1"}
    assert told.phase.value == "running" and told.state.fleet is not None
    told.crashed(rank=5)
    told.chosen()
    assert told.state.fleet.placed == ["n0", "n3", "n2"]


def test_a_new_attempt_knows_the_ranks_places(job: SlowJob) -> None:
    """The rank is slow in the attempt before: on another node it is not, and that is over."""
    work = noisy(18)
    job.train(LEARNED_S, work).train(150, slower(work, {5: 1.4}))
    job.told.crashed()
    job.told.chosen()
    job.now_s = job.told.now_s
    job.start(job.told.state.next_attempt)
    job.train(120, work)
    (incident,) = [each for each in job.told.incidents.values() if each.cause == "straggler"]
    assert incident.recovered_s is not None


def _say_all(told: Told, act: Callable[[], object]) -> list[str]:
    said: list[str] = []
    tell = told.tell

    def listen(event: ev.Event, at_s: float | None = None) -> list[ac.Action]:
        actions = tell(event, at_s)
        said.extend(action.text for action in actions if isinstance(action, ac.Say))
        return actions

    told.tell = listen  # type: ignore[method-assign]
    act()
    told.tell = tell  # type: ignore[method-assign]
    return said
