"""Device memory that becomes more without end, or that its allocator can't use, is reported; what is usual is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.detectors.growth_curves import Curve, at_times, fills, noise, only, plus, saw, until_full

MIN_S = 60.0
HOUR_S = 3600.0
GIB = 1 << 30
DEVICE = 80.0
"""GiB, of one device."""
KEPT = 20.0
"""GiB of parameters and an optimizer's state."""
STEP = 30.0
"""GiB of activations."""


def flat(level: float) -> Curve:
    return lambda s: level


OTHERS = flat(1.5)


class Holds(NamedTuple):
    """What a rank's device holds."""

    kept: Curve = flat(KEPT)
    """In tensors, between steps."""
    step: Curve = flat(STEP)
    """What a step needs beside."""
    unused: Curve = flat(1.0)
    """What the allocator has beyond the most that was ever in tensors."""
    retries: Callable[[float], int] = lambda s: 0
    at_first: float = 0.0
    """What the start needed beside, before the first step."""
    resets: bool = False
    """The script resets its peaks once it has logged them."""
    device: int = 0
    stuck: float = 0.9
    """Share of the unused that can't be given back."""


def train(
    told: Told, ranks: Mapping[int, Holds], hours: float, *, others: Curve = OTHERS, every_s: float = 60.0
) -> None:
    """Ranks advance, a step a second; training ends where a step finds no memory. others: what is no rank's."""
    began_s = told.now_s
    first = told.state.attempt.step if told.state.attempt else 0
    peaks = {rank: it.kept(0) + max(it.step(0), it.at_first) for rank, it in ranks.items()}
    most = dict(peaks)
    for turn in range(1, int(hours * HOUR_S / every_s) + 1):
        at_s = turn * every_s
        now = {}
        for rank, it in ranks.items():
            kept, step = it.kept(at_s), it.step(at_s)
            peaks[rank] = kept + step if it.resets else max(peaks[rank], kept + step)
            most[rank] = max(most[rank], kept + step)
            now[rank] = (kept, min(DEVICE - others(at_s), most[rank] + it.unused(at_s)))
        if any(kept + ranks[rank].step(at_s) > DEVICE - others(at_s) for rank, (kept, _) in now.items()):
            return
        reports = []
        for rank, (kept, reserved) in now.items():
            it = ranks[rank]
            beside = sum(its for each, (_, its) in now.items() if each != rank and it.device == ranks[each].device != 0)
            use = ev.DeviceMemory(
                allocated=int(kept * GIB),
                peak=int(peaks[rank] * GIB),
                reserved=int(reserved * GIB),
                inactive=int(it.stuck * (reserved - kept) * GIB),
                segments=400,
                retries=it.retries(at_s),
                limit=int((DEVICE - others(at_s) - beside) * GIB),
                total=int(DEVICE * GIB),
                device=it.device,
            )
            report = ev.RankReport(
                global_rank=rank,
                progress=10 + turn,
                progress_s=began_s + at_s,
                step=first + int(at_s),
                device_memory=use,
            )
            reports.append(report)
        told.tell(ev.NodeReport(node="node-a", attempt=told.attempt, ranks=reports), began_s + at_s)


def leak(per_hour: float, since_s: float = 0.0, base: float = KEPT) -> Curve:
    return lambda s: base + per_hour * max(0.0, s - since_s) / HOUR_S


def test_a_leak_is_told_with_all_that_is_known_of_it(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(kept=leak(6))}, 5)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("memory", "gpu_leak", "none")
    assert [(culprit.rank, culprit.node) for culprit in incident.culprits] == [(1, "node-a")]
    assert incident.summary.startswith(
        "Rank 1 on node-a holds 6 GB more device memory every hour, in tensors that stay from step to step: the limit "
        "of 78.5 GB is reached in "
    )
    evidence = incident.evidence
    assert evidence["limit_bytes"] == int(78.5 * GIB) and evidence["device_bytes"] == 80 * GIB
    assert evidence["step_needs_bytes"] == pytest.approx(STEP * GIB, rel=0.01)
    assert evidence["per_hour_bytes"] == pytest.approx(6 * GIB, rel=0.02)
    assert evidence["per_step_bytes"] == pytest.approx(6 * GIB / 3600, rel=0.03)
    assert evidence["grown_bytes"] == {"1": evidence["rise_bytes"]}
    assert evidence["onset_step"] < 20 * MIN_S
    end_s = (78.5 - 50) / 6 * HOUR_S
    soonest_s, latest_s = evidence["left_range_s"]
    assert soonest_s <= evidence["left_s"] <= latest_s
    assert incident.detected_s + evidence["left_s"] == pytest.approx(end_s, rel=0.05)
    assert "loss.item()" in incident.advice and "_record_memory_history" in incident.advice
    assert incident.recovered_s is None and told.state.open_incidents == []


LEAKS = {
    "within half an hour": (Holds(kept=leak(60)), 1),
    "slow": (Holds(kept=leak(2.5)), 16),
    "begins after three hours": (Holds(kept=leak(12, since_s=3 * HOUR_S)), 7),
    "a GiB each epoch of ten minutes": (Holds(kept=lambda s: KEPT + s // (10 * MIN_S)), 6),
    "beside an evaluation with larger steps": (Holds(kept=leak(6), step=at_times(12, 20 * MIN_S, 120, STEP)), 6),
    "whose peaks the script resets": (Holds(kept=leak(6), resets=True), 6),
    "whose start needed more than a step does": (Holds(kept=leak(6), step=flat(10), at_first=50), 8),
    "beside steps of all lengths": (Holds(kept=leak(6), step=saw(20, 7 * MIN_S, 10)), 6),
    "beside garbage that the collector frees": (Holds(kept=plus(leak(6), saw(3, 5 * MIN_S))), 6),
    "faster and faster": (Holds(kept=lambda s: KEPT + 4 * (s / HOUR_S) ** 2), 4),
}


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_told_before_half_of_what_is_left_is_gone(told: Told, name: str) -> None:
    holds, hours = LEAKS[name]
    told.running(ranks=2)
    train(told, {0: Holds(), 1: holds}, hours)
    incident = only(told)
    assert incident.cause == "gpu_leak" and [culprit.rank for culprit in incident.culprits] == [1]
    most = max(holds.step(s) for s in range(0, int(2 * HOUR_S), 30))
    reached_s = next(s for s in range(0, int(100 * HOUR_S), 30) if holds.kept(s) + most > DEVICE - 1.5)
    assert incident.detected_s < reached_s - 2 * MIN_S, "too late"
    soonest_s, latest_s = incident.evidence["left_range_s"]
    assert 0.6 * soonest_s < reached_s - incident.detected_s < 1.7 * latest_s


def test_a_need_that_no_step_has_shown_makes_the_range_wider(told: Told) -> None:
    """The start has needed 54 GiB, and so may a step, for all that is known: it needs 25."""
    told.running(ranks=1)
    train(told, {0: Holds(kept=leak(10), step=flat(25.0), at_first=54.0)}, 3.2)
    evidence = only(told).evidence
    assert evidence["step_needs_bytes"] is None
    soonest_s, latest_s = evidence["left_range_s"]
    reached_s = (78.5 - 25 - KEPT) / 10 * HOUR_S
    assert soonest_s < reached_s - only(told).detected_s < latest_s


DECOYS = {
    "a cache that fills up": (Holds(kept=fills(10, 40 * MIN_S, KEPT)), 6),
    "one that is filled and full": (Holds(kept=until_full(8, 25 * MIN_S, KEPT)), 3),
    "an evaluation with larger peaks": (Holds(step=at_times(20, HOUR_S, 6 * MIN_S, STEP)), 5),
    "an evaluation that keeps its outputs until it ends": (Holds(kept=at_times(15, HOUR_S, 9 * MIN_S, KEPT)), 5),
    "garbage, once in half an hour": (Holds(kept=saw(12, 30 * MIN_S, KEPT)), 5),
    "ever longer sequences": (Holds(step=until_full(25, 6 * HOUR_S, 20)), 7),
    "a second model": (Holds(kept=lambda s: KEPT + (15 if s > HOUR_S else 0)), 4),
    "layers that are unfrozen": (Holds(kept=lambda s: KEPT + 3 * min(3, s // (40 * MIN_S))), 6),
    "an optimizer whose state comes late": (Holds(kept=lambda s: 8.0 if s < 90 else KEPT), 4),
    "1 MB an hour": (Holds(kept=leak(0.001)), 8),
    "days away": (Holds(kept=leak(0.3)), 10),
    "reserved up to a plateau in warm-up": (Holds(unused=until_full(20, 6 * MIN_S)), 3),
    "shapes of all sizes, until there is a block for each": (Holds(unused=fills(22, 30 * MIN_S)), 5),
    "a graph's pool for each shape": (Holds(unused=lambda s: 1.3 * min(8, s // (4 * MIN_S))), 6),
    "empty_cache() now and then": (Holds(unused=lambda s: 18 * (1 - math.exp(-(s % (20 * MIN_S)) / 200))), 4),
    "empty_cache() each epoch": (Holds(unused=saw(10, 30 * MIN_S)), 4),
    "nearly all of it from the start": (Holds(step=flat(54.0), unused=flat(2.0)), 2),
    "no memory left once, in an evaluation": (Holds(unused=flat(26.0), retries=lambda s: 8 * (s > HOUR_S)), 4),
    "no memory left in each evaluation": (Holds(unused=flat(26.0), retries=lambda s: int(s // HOUR_S)), 7),
    "no memory left all the time, and all in use": (Holds(step=flat(55.0), retries=lambda s: int(s // 30)), 3),
    "ever longer sequences, each of which fits nothing": (Holds(unused=leak(8, base=1.0), stuck=0.02), 3),
    "small gaps where little room is": (Holds(step=flat(55.0), unused=leak(0.8, base=0.0)), 5),
    "noise": (Holds(kept=plus(flat(KEPT), noise(0.5, 1)), unused=plus(flat(3.0), noise(1.5, 2))), 5),
}


@pytest.mark.parametrize("name", DECOYS)
def test_what_devices_hold_in_daily_life_is_left_alone(told: Told, name: str) -> None:
    holds, hours = DECOYS[name]
    told.running(ranks=2)
    train(told, {0: Holds(), 1: holds}, hours)
    assert told.incidents == {}


@pytest.mark.parametrize("others", [leak(12, base=1.5), fills(24, HOUR_S, 1.5)], ids=["grows", "fills up"])
def test_what_others_take_of_the_device_is_not_the_ranks(told: Told, others: Curve) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(kept=leak(0.3))}, 2, others=others)
    assert told.incidents == {}


def test_a_limit_that_is_not_known_is_none(told: Told) -> None:
    told.running(ranks=2)
    for turn in range(200):
        use = ev.DeviceMemory(allocated=turn * GIB, peak=turn * GIB, reserved=2 * turn * GIB)
        report = ev.RankReport(global_rank=0, progress=turn, step=turn, device_memory=use)
        told.tell(ev.NodeReport(node="node-a", attempt=0, ranks=[report]), 2.0 + 30 * turn)
    assert told.incidents == {}


def test_ranks_that_grow_alike_are_one_incident_whatever_their_devices(told: Told) -> None:
    told.running(ranks=8)
    train(told, {rank: Holds(kept=leak(6 + 0.1 * rank), device=rank + 1) for rank in range(7)} | {7: Holds()}, 3)
    incident = only(told)
    assert [culprit.rank for culprit in incident.culprits] == list(range(7))
    assert incident.summary.startswith("Ranks 0-6 on node-a hold ") and " every hour each, " in incident.summary
    assert incident.evidence["per_hour_bytes"] < 7 * GIB and len(incident.evidence["grown_bytes"]) == 7


def test_ranks_of_one_device_count_together(told: Told) -> None:
    """Each alone would have twice as long."""
    told.running(ranks=2)
    ranks = {rank: Holds(kept=leak(4, base=10), step=flat(10), unused=flat(0.5), device=7) for rank in range(2)}
    train(told, ranks, 5)
    incident = only(told)
    assert len(incident.culprits) == 2
    end_s = (78.5 - 40) / 8 * HOUR_S
    assert incident.detected_s + incident.evidence["left_s"] == pytest.approx(end_s, rel=0.1)


FRAGMENTS = {
    "grows": (
        Holds(unused=leak(8, base=1.0)),
        3,
        "loses 8 GB of device memory every hour to gaps between what is in use: the limit of 78.5 GB is reached in ",
    ),
    "grows in steps": (Holds(unused=lambda s: 1.0 + 2 * (s // (8 * MIN_S))), 3, "of device memory every hour"),
    "grows beside what the script resets": (Holds(unused=leak(10, base=1.0), resets=True), 3, "every hour"),
    "grows with noise": (Holds(unused=plus(leak(12, base=1.0), noise(0.5, 3))), 3, "every hour"),
    "grows beside a leak that is half as fast": (Holds(kept=leak(3), unused=leak(6, base=1.0)), 3, "every hour"),
    "no memory left again and again": (
        Holds(unused=flat(26.0), retries=lambda s: int(max(0, s - 600) // 45)),
        1,
        "had no device memory left ",
    ),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_what_the_allocator_cannot_use_is_told(told: Told, name: str) -> None:
    holds, hours, words = FRAGMENTS[name]
    told.running(ranks=2)
    train(told, {0: Holds(), 1: holds}, hours)
    incident = only(told)
    assert (incident.kind, incident.cause, incident.action) == ("memory", "gpu_fragmentation", "none")
    assert [culprit.rank for culprit in incident.culprits] == [1] and words in incident.summary
    evidence = incident.evidence
    assert 50 * GIB <= evidence["needed_bytes"] < 58 * GIB
    assert "expandable_segments:True" in incident.advice
    if "left_s" not in evidence:
        assert evidence["new_retries"] >= 6 and incident.detected_s < 30 * MIN_S
        return
    assert evidence["stuck_bytes"] > 0.05 * evidence["limit_bytes"]
    reached_s = next(s for s in range(0, int(20 * HOUR_S), 30) if holds.kept(s) + STEP + holds.unused(s) > 78.5)
    assert incident.detected_s < reached_s
    assert incident.detected_s + evidence["left_s"] == pytest.approx(reached_s, rel=0.25)


def test_a_leak_that_fragments_is_a_leak(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(kept=leak(8), unused=leak(3, base=1.0))}, 3)
    assert [incident.cause for incident in told.incidents.values()] == ["gpu_leak"]


def test_growth_that_ends_is_told_as_over(told: Told) -> None:
    told.running(ranks=2)
    train(told, {0: Holds(), 1: Holds(kept=leak(20))}, 1.0)
    assert only(told).recovered_s is None
    train(told, {0: Holds(), 1: Holds(kept=flat(KEPT + 20))}, 1.5)
    assert only(told).recovered_s is not None


def test_advice_is_by_what_the_unused_consists_of() -> None:
    memory = {"reserved_bytes": 50 * GIB, "allocated_bytes": 20 * GIB}
    stuck = advice_for("gpu_fragmentation", {**memory, "inactive_split_bytes": 28 * GIB, "stuck_bytes": 10 * GIB})
    whole = advice_for("gpu_fragmentation", {**memory, "inactive_split_bytes": GIB, "stuck_bytes": GIB})
    assert "max_split_size_mb" in stuck and "garbage_collection_threshold" not in stuck
    assert "garbage_collection_threshold" in whole
