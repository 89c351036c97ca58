"""Open files that become more without end are reported once, in time; what is opened in daily life is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import msgspec
import pytest

from guardrun.supervisor.engine.detectors import descriptor_leak
from guardrun.supervisor.engine.incidents.advice import ADVICE, advice_for
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

MIN_S = 60.0
HOUR_S = 3600.0
BASE = 220
"""What a rank has open that trains on a device."""

Curve = Callable[[float], float]
"""Seconds since the start → files open."""


def train(
    told: Told,
    curves: Mapping[int, Curve],
    hours: float,
    *,
    limit: int = 1024,
    every_s: float = 30.0,
    node: str = "node-a",
    newest: list[tuple[str, int]] | None = None,
) -> None:
    """Ranks advance, and have as many files open as their curves say; what is beyond the limit fails."""
    began_s = told.now_s
    for turn in range(1, int(hours * HOUR_S / every_s) + 1):
        at_s = began_s + turn * every_s
        reports = []
        for rank, curve in curves.items():
            files = ev.OpenFiles(min(int(curve(turn * every_s)), limit or 1 << 40), limit)
            if files.are_many:
                files = msgspec.structs.replace(files, newest=newest or [])
            step = 10 + turn
            reports.append(ev.RankReport(global_rank=rank, progress=step, progress_s=at_s, step=step, open_files=files))
        told.tell(ev.NodeReport(node=node, attempt=told.attempt, ranks=reports), at_s)


def steady(_: float) -> float:
    return BASE


def leak(per_hour: float, since_s: float = 0.0, base: int = BASE) -> Curve:
    return lambda at_s: base + per_hour * max(0.0, at_s - since_s) / HOUR_S


def only(told: Told) -> ac.Incident:
    (incident,) = told.incidents.values()
    return incident


def test_a_leak_is_told_with_all_that_is_known_of_it(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: steady, 1: leak(600)}, 1.2, newest=[("sockets", 190), ("/data/a.h5", 10)])
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("memory", "descriptor_leak", "none")
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(1, "node-a")]
    assert incident.summary == (
        "Rank 1 on node-a has 520 files open, 600 more every hour: its limit of 1,024 is reached in about 50 min "
        "(the newest: 190 sockets, /data/a.h5 10 times)."
    )
    assert 28 * MIN_S < incident.detected_s < 32 * MIN_S
    assert incident.onset_s < 3 * MIN_S
    evidence = incident.evidence
    assert (evidence["ranks"], evidence["open_files"], evidence["limit"]) == ("1", {"1": 520}, 1024)
    assert evidence["per_hour"] == pytest.approx(600, rel=0.02)
    assert incident.detected_s + evidence["left_s"] == pytest.approx((1024 - BASE) * 6.0, rel=0.02)
    assert evidence["newest"] == {"sockets": 190, "/data/a.h5": 10}
    assert "one session" in incident.advice
    assert incident.recovered_s is None and told.state.open_incidents == []


@pytest.mark.parametrize(
    ("curve", "hours", "limit"),
    [
        pytest.param(leak(3000), 0.3, 1024, id="all within a quarter of an hour"),
        pytest.param(leak(2000), 2, 4096, id="a file a batch, at a raised limit"),
        pytest.param(leak(200_000), 3, 524_288, id="200,000 an hour, at a container's limit"),
        pytest.param(leak(60), 14, 1024, id="one a minute"),
        pytest.param(leak(600, since_s=9 * HOUR_S), 11, 1024, id="begins after nine hours"),
        pytest.param(leak(12), 72, 1024, id="twelve an hour: told a day before"),
        pytest.param(lambda s: BASE + 40 * (s // (20 * MIN_S)), 8, 1024, id="each epoch leaves 40 behind"),
        pytest.param(
            lambda s: leak(600)(s) + (90 if s % (7 * MIN_S) < MIN_S else 0), 1.3, 1024, id="beside saves of a minute"
        ),
        pytest.param(lambda s: leak(500)(s) + 15 * math.sin(s / 40), 1.5, 1024, id="beside workers that come and go"),
        pytest.param(lambda s: BASE + 20 * (s / 600) ** 2, 2, 1024, id="faster and faster"),
    ],
)
def test_leaks_are_told_before_the_limit(told: Told, curve: Curve, hours: float, limit: int) -> None:
    told.running(ranks=2)
    train(told, {0: steady, 1: curve}, hours, limit=limit)
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == [1]
    reached_s = next(s for s in range(0, int(1000 * HOUR_S), 60) if curve(s) >= limit)
    assert incident.detected_s < reached_s, "too late"
    assert incident.detected_s + incident.evidence["left_s"] == pytest.approx(reached_s, rel=0.35)


def epochs(most: int, length_s: float, *, share: float = 1.0) -> Curve:
    """A saw: up to so many more in a share of the epoch, then all are closed."""
    return lambda s: BASE + most * min(1.0, (s % length_s) / (share * length_s))


def shards(count: int, within_s: float) -> Curve:
    """Opened one after the other, and kept."""
    return lambda s: BASE + count * min(1.0, s / within_s)


def at_random(count: int, usual_s: float) -> Curve:
    """Opened as samples of them come, and kept: ever fewer are left to be opened."""
    return lambda s: BASE + count * (1 - math.exp(-s / usual_s))


def shared_tensors(s: float) -> float:
    return BASE + random.Random(int(s)).randrange(0, 700)


@pytest.mark.parametrize(
    ("curve", "hours", "limit"),
    [
        pytest.param(epochs(480, 25 * MIN_S, share=0.02), 12, 1024, id="workers that start with each epoch"),
        pytest.param(epochs(260, 9 * MIN_S), 12, 1024, id="a saw with short teeth"),
        pytest.param(shards(2000, 4 * MIN_S), 6, 4096, id="a shuffle buffer opens 2,000 shards"),
        pytest.param(shards(2000, 40 * MIN_S), 12, 8192, id="2,000 shards in the first epoch"),
        pytest.param(at_random(2500, 20 * MIN_S), 12, 4096, id="2,500 shards as they are drawn"),
        pytest.param(at_random(700, 15 * MIN_S), 12, 1024, id="700 shards, close to the limit"),
        pytest.param(at_random(2500, 6 * HOUR_S), 72, 4096, id="2,500 shards, a day long"),
        pytest.param(lambda s: BASE + (700 if s % (30 * MIN_S) < MIN_S else 0), 8, 1024, id="a save opens 700"),
        pytest.param(leak(5000), 24, 0, id="no limit"),
        pytest.param(leak(600), 72, 1_048_576, id="a limit that is weeks away"),
        pytest.param(shared_tensors, 12, 1024, id="tensors that workers share, up and down"),
        pytest.param(leak(3, base=560), 100, 1024, id="slow: a week to go"),
        pytest.param(leak(1), 100, 1024, id="a log file an hour"),
        pytest.param(lambda s: 950, 12, 1024, id="many from the start"),
        pytest.param(lambda s: BASE + 100 * min(5, s // (20 * MIN_S)), 8, 1024, id="five data sets, one after another"),
    ],
)
def test_what_is_opened_in_daily_life_is_left_alone(told: Told, curve: Curve, hours: float, limit: int) -> None:
    told.running(ranks=2)
    train(told, {0: steady, 1: curve}, hours, limit=limit, every_s=30.0 if hours < 8 else 60.0)
    assert told.incidents == {}


@pytest.mark.parametrize("seed", range(5))
def test_ups_and_downs_at_random_are_left_alone(told: Told, seed: int) -> None:
    """A walk that returns to its mean, as caches and pools do."""
    chance, level = random.Random(seed), 0.0
    told.running(ranks=2)
    size = chance.uniform(20, 120)

    def walk(_: float) -> float:
        nonlocal level
        level = 0.97 * level + chance.gauss(0, size / 4)
        return 560 + level

    train(told, {0: walk}, 12)
    assert told.incidents == {}


def test_a_saw_whose_first_tooth_is_tall_is_told_no_second_time(told: Told) -> None:
    """Nothing tells the first tooth of two hours from a leak, before it ends."""
    told.running(ranks=2)
    train(told, {0: epochs(700, 2 * HOUR_S)}, 12)
    incident = only(told)
    assert incident.detected_s < 2 * HOUR_S
    assert incident.recovered_s is not None and 2 * HOUR_S < incident.recovered_s < 3 * HOUR_S


def test_a_node_whose_ranks_cannot_be_counted_says_nothing(told: Told) -> None:
    told.running(ranks=2)
    for turn in range(1, 300):
        told.step(10 + turn, told.now_s + 30)
    assert told.incidents == {} and told.state.detectors.descriptor_leak.lows == {}


def test_counts_that_fail_to_come_break_the_row(told: Told) -> None:
    """What was opened while nobody counted may have been opened at once."""
    told.running(ranks=2)
    for part in range(20):
        train(told, {0: leak(300, base=BASE + 40 * part)}, 0.1)
        told.step(10, told.now_s + 12 * HOUR_S)
    assert told.incidents == {}


def test_a_rank_that_is_started_again_begins_anew(told: Told) -> None:
    told.running(ranks=2)
    train(told, {1: leak(600)}, 0.4)
    told.crashed()
    told.restarted(step=60)
    train(told, {1: leak(600)}, 0.4)
    assert [incident.cause for incident in told.incidents.values()] == ["segfault"]
    train(told, {1: leak(600, base=460)}, 0.4)
    assert [incident.cause for incident in told.incidents.values()] == ["segfault", "descriptor_leak"]


def test_ranks_that_leak_alike_are_one_incident(told: Told) -> None:
    told.running(ranks=8)
    curves = {rank: leak(600, since_s=20.0 * rank, base=BASE + rank) for rank in range(7)} | {7: steady}
    train(told, curves, 1.2)
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == list(range(7))
    assert incident.evidence["ranks"] == "0-6" and len(incident.evidence["open_files"]) == 7
    assert incident.summary.startswith("Ranks 0-6 on node-a have about 5")
    assert " files open each, 600 more every hour: their limit of 1,024 is reached in about " in incident.summary


def test_told_once_a_rank_and_a_few_times_a_run(told: Told) -> None:
    told.running(ranks=6)
    for rank in range(6):
        train(told, {rank: leak(600)}, 1.3)
    assert [[c.rank for c in incident.culprits] for incident in told.incidents.values()] == [[0], [1], [2]]
    assert len(told.incidents) == descriptor_leak.MOST_REPORTED


@pytest.mark.parametrize("after", [620, 300], ids=["stays", "are closed"])
def test_growth_that_ends_is_told_as_over(told: Told, after: int) -> None:
    told.running(ranks=2)
    train(told, {0: leak(600), 1: leak(600)}, 0.6)
    assert only(told).recovered_s is None
    train(told, {0: lambda s: after, 1: leak(600, base=580)}, 0.3)
    assert only(told).recovered_s is None, "one of them goes on"
    train(told, {0: lambda s: after, 1: lambda s: after}, 0.3)
    assert only(told).recovered_s is not None
    train(told, {0: leak(600), 1: leak(600)}, 1.2)
    assert only(told).recovered_s is not None


def test_what_is_over_is_said(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: leak(600)}, 0.6)
    began_s = told.now_s
    said: list[str] = []
    for turn in range(1, 40):
        files = ev.OpenFiles(590, 1024)
        report = ev.RankReport(global_rank=0, progress=1000 + turn, step=1000 + turn, open_files=files)
        event = ev.NodeReport(node="node-a", attempt=0, ranks=[report])
        said += [a.text for a in told.tell(event, began_s + 30 * turn) if isinstance(a, ac.Say)]
    assert said == ["incident 001 is over: Rank 0 on node-a stays at 590 open files"]


def test_windows_are_as_long_as_is_set(told: Told) -> None:
    told.running(ranks=2, files_window_s=2.0)
    train(told, {1: leak(3600 * 30)}, 0.006, every_s=0.5)
    assert only(told).detected_s < 20


@pytest.mark.parametrize(
    ("newest", "word"),
    [
        ({"sockets": 3}, "session"),
        ({"pipes": 3}, "persistent_workers"),
        ({"files in /dev/shm": 3}, "set_sharing_strategy"),
        ({"files in /data": 3}, "`with` block"),
        ({"/data/a.h5": 3}, "`with` block"),
    ],
)
def test_advice_is_by_what_is_open(newest: dict[str, int], word: str) -> None:
    assert word in advice_for("descriptor_leak", {"newest": newest})
    assert advice_for("descriptor_leak", {"newest": {"eventfd": 3}}) == ADVICE["descriptor_leak"]
