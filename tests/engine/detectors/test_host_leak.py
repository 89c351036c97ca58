"""Host memory that becomes more without end is reported once, in time, with rank and process; what fills up is not."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from guardrun.supervisor.engine.detectors import growing
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.detectors.growth_curves import Curve, at_times, fills, noise, only, plus, saw, until_full

MIN_S = 60.0
HOUR_S = 3600.0
GIB = 1 << 30
MIB = 1 << 20
LIMIT = 64.0
"""GiB, of the node."""
BASE = 6.0
"""GiB that a rank holds once it trains."""


class Holds(NamedTuple):
    """What a rank holds."""

    own: Curve = lambda s: BASE
    below: Curve = lambda s: 0.0
    shared: Curve = lambda s: 0.0
    one: float = 1.0
    """Share of what is below that the largest process has."""
    pid: int = 4242


def train(
    told: Told,
    ranks: Mapping[int, Holds],
    hours: float,
    *,
    limit: float = LIMIT,
    others: Curve = lambda s: 2.0,
    every_s: float = 30.0,
    seen: float = 1.0,
    node: str = "node-a",
    steps: bool = True,
) -> None:
    """Ranks advance, a step a second, and hold what their curves say; training ends where nothing is left.

    others: what everybody else uses. seen: share of what ranks hold that counts against the limit.
    """
    began_s = told.now_s
    first = told.state.attempt.step if told.state.attempt else 0
    for turn in range(1, int(hours * HOUR_S / every_s) + 1):
        at_s = turn * every_s
        held = {rank: (it.own(at_s), it.below(at_s), it.shared(at_s)) for rank, it in ranks.items()}
        used = others(at_s) + seen * sum(map(sum, held.values()))
        if used >= limit:
            return
        step = first + int(at_s) if steps else 0
        reports = []
        for rank, (own, below, shared) in held.items():
            it = ranks[rank]
            use = ev.MemoryUse(
                own=int(own * GIB),
                below=int(below * GIB),
                largest=(it.pid, int(it.one * below * GIB)) if below else (0, 0),
                processes=8 if below else 0,
                shared=int(shared * GIB),
                limit=int(limit * GIB),
                used=int(used * GIB),
            )
            report = ev.RankReport(
                global_rank=rank, progress=10 + turn, progress_s=began_s + at_s, step=step, memory=use
            )
            reports.append(report)
        told.tell(ev.NodeReport(node=node, attempt=told.attempt, ranks=reports), began_s + at_s)


def flat(level: float = BASE) -> Curve:
    return lambda s: level


def leak(per_hour: float, since_s: float = 0.0, base: float = BASE) -> Curve:
    return lambda s: base + per_hour * max(0.0, s - since_s) / HOUR_S


def test_a_leak_is_told_with_all_that_is_known_of_it(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(own=leak(12))}, 2.5)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("memory", "host_leak", "none")
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(1, "node-a")]
    assert incident.summary.startswith(
        "Rank 1 on node-a holds 12 GB more host memory every hour, in its own process (pid 101): "
        "the limit of 64 GB is reached in "
    )
    assert incident.onset_s < 15 * MIN_S
    evidence = incident.evidence
    assert (evidence["ranks"], evidence["part"], evidence["pid"]) == ("1", "own", 101)
    assert evidence["limit_bytes"] == 64 * GIB and evidence["used_bytes"] < 64 * GIB
    assert evidence["per_hour_bytes"] == pytest.approx(12 * GIB, rel=0.02)
    assert evidence["per_step_bytes"] == pytest.approx(12 * GIB / 3600, rel=0.03)
    assert list(evidence["grown_bytes"]) == ["1"] and evidence["grown_bytes"]["1"]["own"] == evidence["rise_bytes"]
    end_s = (64 - 14) / 12 * HOUR_S
    soonest_s, latest_s = evidence["left_range_s"]
    assert soonest_s <= evidence["left_s"] <= latest_s
    assert incident.detected_s + evidence["left_s"] == pytest.approx(end_s, rel=0.05)
    assert "loss.item()" in incident.advice and "tracemalloc" in incident.advice
    assert incident.recovered_s is None and told.state.open_incidents == []


FAULTS = {
    "fast: 50 GiB within the hour": (Holds(own=leak(50)), 2, LIMIT),
    "within a quarter of an hour": (Holds(own=leak(200)), 1, LIMIT),
    "slow, in a container": (Holds(own=leak(0.5, base=1.0)), 14, 8.0),
    "slow: 4 GiB an hour": (Holds(own=leak(4)), 13, LIMIT),
    "begins after five hours": (Holds(own=leak(20, since_s=5 * HOUR_S)), 8, LIMIT),
    "in one worker": (Holds(below=leak(10, base=0.0)), 5, LIMIT),
    "in all workers": (Holds(below=leak(16, base=0.0), one=0.13), 4, LIMIT),
    "in /dev/shm": (Holds(shared=leak(10, base=0.0)), 5, LIMIT),
    "in steps of 100 MiB every ten minutes": (Holds(own=lambda s: 1.0 + 0.1 * (s // (10 * MIN_S))), 10, 6.5),
    "each epoch of half an hour leaves 3 GiB": (Holds(own=lambda s: BASE + 3 * (s // (30 * MIN_S))), 8, LIMIT),
    "beside a saw": (Holds(own=plus(leak(9), saw(3, 7 * MIN_S))), 6, LIMIT),
    "beside workers of each epoch": (Holds(own=leak(9), below=saw(4, 20 * MIN_S)), 6, LIMIT),
    "beside an evaluation that holds twice as much": (
        Holds(own=plus(leak(8), at_times(5, HOUR_S, 6 * MIN_S))),
        6,
        LIMIT,
    ),
    "beside noise": (Holds(own=plus(leak(8), noise(0.4, 3))), 6, LIMIT),
    "faster and faster": (Holds(own=lambda s: BASE + 8 * (s / HOUR_S) ** 2), 3, LIMIT),
    "of a rank whose start takes most": (Holds(own=plus(leak(10), until_full(-4, 5 * MIN_S, base=4.0))), 5, LIMIT),
}


@pytest.mark.parametrize("name", FAULTS)
def test_leaks_are_told_before_half_of_what_is_left_is_gone(told: Told, name: str) -> None:
    holds, hours, limit = FAULTS[name]
    told.running(ranks=2)
    other = BASE if limit == LIMIT else 0.5
    train(told, {0: Holds(own=flat(other)), 1: holds}, hours, limit=limit, others=flat(0.5))
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == [1]

    def used(at_s: float) -> float:
        return 0.5 + other + holds.own(at_s) + holds.below(at_s) + holds.shared(at_s)

    reached_s = next(s for s in range(0, int(100 * HOUR_S), 30) if used(s) >= limit)
    told_s = incident.detected_s
    grown = [used(told_s + s) for s in range(-300, 330, 30)]
    is_slow = reached_s - told_s > 5 * HOUR_S
    assert told_s < reached_s - 2 * MIN_S, "too late"
    assert is_slow or min(grown) - used(0) < 0.55 * (limit - used(0)), "more than half is gone"
    soonest_s, latest_s = incident.evidence["left_range_s"]
    assert 0.6 * soonest_s < reached_s - told_s < 1.7 * latest_s
    part, pid = incident.evidence["part"], incident.evidence["pid"]
    expected = {"in one worker": ("below", 4242), "in all workers": ("below", None), "in /dev/shm": ("shared", None)}
    assert (part, pid) == expected.get(name, ("own", 101))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("holds", "hours", "limit"),
    [
        pytest.param(Holds(own=saw(12, 20 * MIN_S, BASE)), 8, LIMIT, id="a saw of the collector"),
        pytest.param(Holds(own=saw(18, 2 * HOUR_S, BASE)), 12, LIMIT, id="a saw as long as an epoch"),
        pytest.param(Holds(own=saw(0.8, 9 * MIN_S, 1.0)), 8, 4.0, id="a saw close to a container's limit"),
        pytest.param(Holds(own=fills(30, 40 * MIN_S, BASE)), 12, LIMIT, id="a cache of samples as they are drawn"),
        pytest.param(Holds(own=fills(45, 3 * HOUR_S, BASE)), 16, LIMIT, id="a large one that takes half a day"),
        pytest.param(Holds(own=until_full(18, 25 * MIN_S, BASE)), 8, LIMIT, id="a cache that is filled and full"),
        pytest.param(Holds(own=until_full(23, 25 * MIN_S, BASE)), 8, LIMIT, id="one that takes two fifths of the room"),
        pytest.param(Holds(below=until_full(18, 50 * MIN_S), one=0.13), 8, LIMIT, id="a cache in each worker"),
        pytest.param(Holds(own=lambda s: BASE + 4 * math.log1p(s / 120)), 12, LIMIT, id="the longest sequence so far"),
        pytest.param(Holds(own=flat(), shared=fills(20, HOUR_S)), 12, LIMIT, id="shared memory that is filled"),
        pytest.param(Holds(below=saw(16, 25 * MIN_S), one=0.13), 8, LIMIT, id="workers that start with each epoch"),
        pytest.param(Holds(own=at_times(20, HOUR_S, 12 * MIN_S, BASE)), 8, LIMIT, id="an evaluation"),
        pytest.param(Holds(own=at_times(29, 74 * MIN_S, 32 * MIN_S, BASE)), 6, LIMIT, id="a long one"),
        pytest.param(Holds(own=at_times(30, 15 * MIN_S, MIN_S, BASE)), 8, LIMIT, id="a copy for each save"),
        pytest.param(
            Holds(own=lambda s: BASE + 6 * min(3, s // (40 * MIN_S))), 8, LIMIT, id="a data set after the other"
        ),
        pytest.param(Holds(own=fills(9, 90 * MIN_S, BASE)), 12, 24.0, id="fragmentation that levels off"),
        pytest.param(Holds(own=leak(0.001)), 30, LIMIT, id="1 MB an hour"),
        pytest.param(Holds(own=leak(0.001, base=56.0)), 30, LIMIT, id="1 MB an hour, little left"),
        pytest.param(Holds(own=leak(0.3)), 30, LIMIT, id="days away"),
        pytest.param(Holds(own=flat(45.0)), 8, LIMIT, id="most of it from the start"),
        pytest.param(
            Holds(own=plus(flat(), at_times(24, 3 * HOUR_S, 3 * HOUR_S))), 8, LIMIT, id="a step up that stays"
        ),
        pytest.param(
            Holds(own=plus(leak(0.4), lambda s: 24.0 if s > 3 * HOUR_S else 0.0)), 9, LIMIT, id="one beside a slow rise"
        ),
        pytest.param(Holds(own=until_full(-20, 4 * HOUR_S, 40.0)), 8, LIMIT, id="less and less"),
    ],
)
def test_what_is_held_in_daily_life_is_left_alone(
    told: Told, holds: Holds, hours: float, limit: float, seed: int
) -> None:
    """With noise, another one a seed."""
    noisy = holds._replace(own=plus(holds.own, noise(0.004 * limit * seed, seed)))
    told.running(ranks=2)
    other = Holds(own=plus(flat(0.04 * limit), noise(0.002 * limit * seed, seed + 100)))
    every_s = 60.0 if seed or hours >= 10 else 30.0
    train(told, {0: other, 1: noisy}, hours, limit=limit, others=flat(0.5), every_s=every_s)
    assert told.incidents == {}


@pytest.mark.parametrize("seed", range(3))
def test_ups_and_downs_at_random_are_left_alone(told: Told, seed: int) -> None:
    """A walk that returns to its mean, as pools and caches with a bound do; close to the limit with each other seed."""
    chance, level = random.Random(seed), 0.0
    mean, size = (40.0, 0.5) if seed % 2 else (BASE, 2.0)

    def walk(_: float) -> float:
        nonlocal level
        level = 0.98 * level + chance.gauss(0, size)
        return max(1.0, mean + level)

    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(own=walk)}, 10, every_s=60.0)
    assert told.incidents == {}


@pytest.mark.parametrize(
    ("ranks", "others", "seen"),
    [
        pytest.param({0: Holds(), 1: Holds()}, leak(10, base=2.0), 1.0, id="another job takes it"),
        pytest.param({0: Holds(), 1: Holds(own=leak(0.5))}, leak(10, base=2.0), 1.0, id="nearly all of it"),
        pytest.param({0: Holds(), 1: Holds(below=lambda s: 0.1)}, fills(40, HOUR_S, 2.0), 1.0, id="copies on write"),
        pytest.param({0: Holds(), 1: Holds(shared=leak(20, base=0.0))}, flat(2.0), 0.0, id="counted, but not used"),
        pytest.param({0: Holds(), 1: Holds(own=leak(20))}, leak(-20, base=50.0), 1.0, id="others give as much back"),
    ],
)
def test_what_is_not_the_ranks_or_takes_nothing_from_the_limit_is_left_alone(
    told: Told, ranks: dict[int, Holds], others: Curve, seen: float
) -> None:
    told.running(ranks=2)
    train(told, ranks, 2.4 if seen < 1 else 6, others=others, seen=seen)
    assert told.incidents == {}


def test_a_limit_that_is_not_known_is_none(told: Told) -> None:
    told.running(ranks=2)
    for turn in range(400):
        use = ev.MemoryUse(own=turn * GIB)
        report = ev.RankReport(global_rank=0, progress=turn, step=turn, memory=use)
        told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[report]), 2.0 + 30 * turn)
    assert told.incidents == {}


def test_ranks_that_grow_alike_are_one_incident_and_count_together(told: Told) -> None:
    """One of them alone would take two days."""
    told.running(ranks=8)
    ranks = {rank: Holds(own=leak(1.2 + 0.02 * rank, since_s=20.0 * rank, base=2.0)) for rank in range(7)}
    train(told, {**ranks, 7: Holds(own=flat(2.0))}, 5)
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == list(range(7))
    assert incident.summary.startswith("Ranks 0-6 on node-a hold ") and "in their own processes" in incident.summary
    assert incident.evidence["ranks"] == "0-6" and incident.evidence["pid"] == 100 + 6
    assert incident.evidence["per_hour_bytes"] == pytest.approx(8.82 * GIB, rel=0.05)
    end_s = (64 - 18) / 8.82 * HOUR_S
    assert incident.detected_s + incident.evidence["left_s"] == pytest.approx(end_s, rel=0.05)
    assert incident.detected_s < end_s / 2


def test_one_of_eight_is_named_alone(told: Told) -> None:
    told.running(ranks=8)
    ranks = {rank: Holds(own=plus(flat(3.0), saw(1.5, (7 + rank) * MIN_S))) for rank in range(8)}
    train(told, {**ranks, 5: Holds(own=leak(10, base=3.0))}, 4)
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == [5]
    assert incident.evidence["per_hour_bytes"] == pytest.approx(10 * GIB, rel=0.05)


def test_ranks_that_share_what_grows_do_not_count_it_eight_times(told: Told) -> None:
    told.running(ranks=8)
    grown = leak(8, base=0.0)
    ranks = {rank: Holds(own=flat(2.0), shared=grown) for rank in range(8)}
    train(told, ranks, 5, others=lambda s: 4.0 + grown(s) * (1 - 8), limit=64.0)
    incident = only(told)
    assert incident.evidence["part"] == "shared" and len(incident.culprits) == 8
    end_s = (64 - 20) / 8 * HOUR_S
    assert incident.detected_s + incident.evidence["left_s"] == pytest.approx(end_s, rel=0.05)


def test_when_it_began_is_told_by_time_and_step(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(own=leak(30, since_s=3 * HOUR_S))}, 5)
    assert 2.6 * HOUR_S < only(told).onset_s < 3.4 * HOUR_S
    assert only(told).evidence["onset_step"] == pytest.approx(only(told).onset_s, rel=0.02), "a step a second"


def test_ranks_of_other_nodes_do_not_count(told: Told) -> None:
    told.fleet_opened(2)
    told.fleet_started(1.0)
    told.step(10, 2.0, range(4))
    for turn in range(1, 700):
        for node, rank in (("n0", 0), ("n1", 2)):
            own = int((4 + 2.4 * turn * 30 / 3600) * GIB)
            use = ev.MemoryUse(own=own, limit=64 * GIB, used=own + 4 * GIB)
            report = ev.RankReport(global_rank=rank, progress=10 + turn, step=10 + turn, joint=10 + turn, memory=use)
            told.tell(ev.NodeReport(node=node, attempt=0, ranks=[report]), 2.0 + turn * 30.0)
    assert told.incidents == {}, "each node has more than a day left"


def test_what_is_held_before_the_first_step_is_not_counted(told: Told) -> None:
    """A large model is loaded, and stays."""
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(own=until_full(38, 50 * MIN_S, BASE))}, 0.9, steps=False)
    assert told.state.detectors.host_leak.held[1].lows == {}
    train(told, {0: Holds(), 1: Holds(own=flat(BASE + 38))}, 3)
    assert told.incidents == {} and told.state.detectors.host_leak.held[1].lows != {}


def test_a_leak_of_a_script_whose_steps_nobody_sees(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(own=leak(15))}, 4, steps=False)
    assert [culprit.rank for culprit in only(told).culprits] == [1]
    assert only(told).evidence["per_step_bytes"] is None
    assert only(told).detected_s > HOUR_S


def test_counts_that_fail_to_come_break_the_row(told: Told) -> None:
    """The machine was suspended, or the rank stood still: what came meanwhile may have come at once."""
    told.running(ranks=2)
    for part in range(12):
        train(told, {1: Holds(own=flat(BASE + 4 * part))}, 0.1)
        told.step(1 << 20, told.now_s + 5 * HOUR_S)
    assert told.incidents == {}


def test_a_rank_that_is_started_again_begins_anew(told: Told) -> None:
    told.running(ranks=2)
    train(told, {1: Holds(own=leak(24))}, 0.7)
    told.crashed()
    told.restarted(step=60)
    train(told, {1: Holds(own=leak(24))}, 0.7)
    assert [incident.cause for incident in told.incidents.values()] == ["segfault"]
    train(told, {1: Holds(own=leak(24, base=BASE + 17))}, 0.7)
    assert [incident.cause for incident in told.incidents.values()] == ["segfault", "host_leak"]


def test_a_saw_whose_first_tooth_is_tall_is_told_no_second_time(told: Told) -> None:
    """Nothing tells the first tooth of three hours from a leak, before it ends."""
    told.running(ranks=2)
    train(told, {1: Holds(own=saw(40, 3 * HOUR_S, BASE))}, 16)
    incident = only(told)
    assert incident.detected_s < 3 * HOUR_S
    assert incident.recovered_s is not None


def test_growth_that_ends_is_told_as_over(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(own=leak(20)), 1: Holds(own=leak(20))}, 0.8)
    assert only(told).recovered_s is None and len(only(told).culprits) == 2
    stays = Holds(own=flat(BASE + 16))
    train(told, {0: stays, 1: Holds(own=leak(10, base=BASE + 16))}, 0.6)
    assert only(told).recovered_s is None, "one of them goes on"
    train(told, {0: stays, 1: Holds(own=plus(flat(BASE + 22), noise(0.05, 1)))}, 1.0)
    assert only(told).recovered_s is not None


def test_told_once_a_rank_and_a_few_times_a_run(told: Told) -> None:
    told.running(ranks=5)
    for rank in range(5):
        train(told, {rank: Holds(own=leak(30))}, 1.2)
    assert [[c.rank for c in incident.culprits] for incident in told.incidents.values()] == [[0], [1], [2]]
    assert len(told.incidents) == growing.MOST_REPORTED


def test_windows_are_as_long_as_is_set(told: Told) -> None:
    told.running(ranks=2, memory_window_s=1.0)
    train(told, {1: Holds(own=leak(3600))}, 0.01, every_s=0.5)
    assert only(told).detected_s < 30


def test_advice_is_by_what_grows() -> None:
    assert "persistent_workers" in advice_for("host_leak", {"part": "below"})
    assert "clone()" in advice_for("host_leak", {"part": "shared"})
    assert "loss.item()" in advice_for("host_leak", {"part": "own"})
