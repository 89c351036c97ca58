"""The default patience in virtual time: what comes back is left alone, what does not is mended in the time stated."""

from __future__ import annotations

import pytest

from guardrun.supervisor.config import Config
from guardrun.supervisor.engine.model import events as ev
from tests.sim import activity as act
from tests.sim.activity import Activity
from tests.sim.checks import check_healthy
from tests.sim.cluster import Cluster
from tests.sim.training import Plan

SETTINGS = Config().settings()
LICENCE = Activity("a licence", stacks=act.HANG.stacks)
POLL = Activity("polls", stacks=act.HANG.stacks, wakes=0.5)
RETRIES = Activity("retries", stacks=act.SPIN.stacks, cpu=1.0)
SLOW_DISK = Activity("a slow disk", stacks=act.IO_BLOCKED.stacks, state="D")
SLEEPS = ((LICENCE, 280), (POLL, 580), (RETRIES, 580), (SLOW_DISK, 280), (act.DATA_SLOW, 280))
"""What looks like a hang, and for how long it may."""


def sure(ranks: int = 8, plan: Plan | None = None, settings: ev.Settings = SETTINGS) -> Cluster:
    return Cluster(ranks, plan=plan, settings=settings)


@pytest.mark.parametrize(("decoy", "seconds"), SLEEPS, ids=lambda one: getattr(one, "name", str(one)))
def test_what_looks_like_a_hang_and_comes_back_is_only_told(decoy: Activity, seconds: float) -> None:
    cluster = sure()
    cluster.do(decoy, global_rank=3, at_s=150, seconds=seconds)
    cluster.run(until_s=150 + seconds + 300)
    check_healthy(cluster)
    told = [text for text in cluster.said if text.startswith("stall: Rank 3 ")]
    over = [text for text in cluster.said if text.startswith("stall over: Rank 3 ")]
    assert (len(told), len(over)) == (1, 1), cluster.said
    assert [stall["who"][0]["rank"] for stall in cluster.engine.summary(cluster.now_s).stalls] == [3]


@pytest.mark.parametrize("decoy", [*act.BUSY_DECOYS, *act.NATIVE_DECOYS], ids=lambda decoy: decoy.name)
def test_minutes_of_work_are_not_even_told(decoy: Activity) -> None:
    cluster = sure()
    cluster.do(decoy, global_rank=0, at_s=150, seconds=280)
    cluster.run(until_s=600)
    check_healthy(cluster)
    assert [text for text in cluster.said if "stall" in text] == []


@pytest.mark.parametrize("decoy", act.NATIVE_DECOYS, ids=lambda decoy: decoy.name)
def test_a_native_search_of_half_an_hour_is_only_told(decoy: Activity) -> None:
    """A fit, a regular expression over a corpus: Python's own loop would be ended after ten minutes."""
    cluster = sure()
    cluster.do(decoy, global_rank=0, at_s=150, seconds=1700)
    cluster.run(until_s=2200)
    check_healthy(cluster)
    [told] = [text for text in cluster.said if text.startswith("stall: Rank 0 ")]
    assert " train.py:6" in told or "(train.py:6" in told


@pytest.mark.parametrize("decoy", [LICENCE, POLL, RETRIES, SLOW_DISK], ids=lambda decoy: decoy.name)
def test_where_nobody_waits_half_an_hour_is_fine(decoy: Activity) -> None:
    cluster = sure(ranks=1)
    cluster.do(decoy, global_rank=0, at_s=150, seconds=1700)
    cluster.run(until_s=2200)
    check_healthy(cluster)


@pytest.mark.parametrize("decoy", [POLL, RETRIES, act.BACKWARD], ids=lambda decoy: decoy.name)
def test_and_a_day_for_what_runs_or_wakes_up(decoy: Activity) -> None:
    """Long: a day has a hundred thousand samples."""
    cluster = sure(ranks=1)
    cluster.do(decoy, global_rank=0, at_s=150, seconds=86_400)
    cluster.run(until_s=87_000)
    check_healthy(cluster)


@pytest.mark.parametrize(
    ("fault", "patience_s"),
    [
        (act.STOPPED, 3),
        (act.TRACED, 20),
        (act.HANG, 300),
        (act.DATA_DEAD, 300),
        (act.IO_BLOCKED, 300),
        (act.GIL_HELD, 600),
        (act.SPIN, 600),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_what_does_not_come_back_is_mended_in_the_time_that_is_said(fault: Activity, patience_s: float) -> None:
    cluster = sure()
    cluster.do(fault, global_rank=3, at_s=200)
    cluster.run(until_s=1500)
    cluster.check_end()
    cluster.replay()
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == (fault.cause, [3])
    assert incident.acted_s is not None
    assert patience_s - 1 <= incident.acted_s - 200 <= patience_s + 20
    assert incident.detected_s - 200 <= 25
    assert incident.recovered_s is not None


@pytest.mark.parametrize("sensitivity", ["eager", "patient"])
def test_the_other_columns(sensitivity: str) -> None:
    config = Config()
    hang = type(config.hang)(sensitivity=sensitivity)  # type: ignore[arg-type]
    settings = type(config)(hang=hang).settings()
    cluster = sure(settings=settings)
    cluster.hang(global_rank=3, at_s=200)
    cluster.run(until_s=3000)
    [incident] = cluster.hangs
    assert incident.acted_s is not None
    wanted_s = {"eager": 30, "patient": 1800}[sensitivity]
    assert wanted_s - 1 <= incident.acted_s - 200 <= wanted_s + 20
