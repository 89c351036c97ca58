"""Whatever happens, in any order: no incident wedges, nobody healthy is stopped, budgets hold, replay agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.sim import activity as act
from tests.sim.cluster import Cluster
from tests.sim.training import Job, Plan

# Shrinking a story takes longer than reading it; a soak may take its time.
_EXAMPLES = settings.default.max_examples if settings.default else 100
played = settings(
    max_examples=max(1, _EXAMPLES // 4),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if _EXAMPLES > 100 else [])],
)

LAST_S = 1500
"""Things happen until then."""
UNTIL_S = 3000
AFTER_S = 300
"""What trains again is watched for so long."""
ANSWERED = (ac.TakeLook, ac.ReadExits, ac.ChooseCheckpoint)
ORDERS = (*ANSWERED, ac.StartAttempt, ac.StopAttempt)
ERROR = ev.ErrorRecord(error="ValueError", message="bad", frames=[("/home/user/train.py", "train", 60)])

plans = st.builds(
    Plan,
    step_s=st.sampled_from([0.05, 0.5, 3, 20]),
    total_steps=st.sampled_from([100, 2000, 10**6]),
    imports_s=st.sampled_from([1, 5, 40]),
    first_step_s=st.sampled_from([1, 5, 60, 200]),
    save_every_s=st.sampled_from([30, 60, 300]),
    save_s=st.sampled_from([0.5, 5, 40]),
    waits=st.sampled_from([act.WAITING, act.WAITING_SPINNING]),
)
run_settings = st.builds(
    ev.Settings,
    max_restarts=st.sampled_from([0, 1, 3, 10]),
    max_no_progress=st.sampled_from([0, 1, 3]),
    act=st.sampled_from([True, True, True, False]),
    resume_first=st.booleans(),
)
times = st.floats(1, LAST_S)


@dataclass(frozen=True)
class Happening:
    """Something that befalls a cluster; its words are what hypothesis prints."""

    what: str
    rank: int
    at_s: float
    how: object = None

    def befall(self, cluster: Cluster) -> None:
        HAPPENINGS[self.what][1](cluster, self.rank % cluster.world_size, self.at_s, self.how)


def _hold(cluster: Cluster, rank: int, at_s: float, seconds: float) -> None:
    cluster.hold(True, at_s)
    cluster.hold(False, at_s + seconds)


def _poison(cluster: Cluster, rank: int, at_s: float, how: tuple[int, str]) -> None:
    step, kind = how

    def strike(job: Job) -> None:
        if kind == "hang":
            job.begin(rank, act.HANG, cluster.now_s)
        else:
            cluster.launcher.rank_falls(rank, -9 if kind == "kill" else 1, None if kind == "kill" else ERROR, 0.0)

    cluster.poison_at(step, strike)


def _crash(cluster: Cluster, rank: int, at_s: float, how: tuple[int, float]) -> None:
    cluster.crash(rank, at_s, exitcode=how[0], lag_s=how[1])


def _raise(cluster: Cluster, rank: int, at_s: float, lag_s: float) -> None:
    cluster.crash(rank, at_s, error=ERROR, lag_s=lag_s)


def _do(cluster: Cluster, rank: int, at_s: float, how: tuple[act.Activity, float | None]) -> None:
    cluster.do(how[0], rank, at_s, how[1])


def _lose(cluster: Cluster, rank: int, at_s: float, how: tuple[type, int]) -> None:
    cluster.at(at_s, lambda: cluster.lose(*how))


def _delay(cluster: Cluster, rank: int, at_s: float, how: tuple[type, float]) -> None:
    cluster.at(at_s, lambda: cluster.delay(*how))


def _restart(cluster: Cluster, rank: int, at_s: float, how: tuple[float, bool]) -> None:
    cluster.restart_supervisor(at_s, how[0], by_replay=how[1])


def _lose_raised(cluster: Cluster, rank: int, at_s: float, how: None) -> None:
    cluster.launcher.raised_gets_lost = True


HAPPENINGS: dict[str, tuple[st.SearchStrategy[object], Callable[..., None]]] = {
    "fault": (st.tuples(st.sampled_from(act.FAULTS), st.none()), _do),
    "decoy": (st.tuples(st.sampled_from(act.BUSY_DECOYS), st.sampled_from([5.0, 50.0, 400.0])), _do),
    "pause": (st.tuples(st.just(act.PAUSING), st.floats(1, 19)), _do),
    "data pause": (st.tuples(st.just(act.DATA_SLOW), st.floats(1, 45)), _do),
    "moment stopped": (st.tuples(st.just(act.BRIEFLY_STOPPED), st.floats(0.1, 1.9)), _do),
    "collection": (st.sampled_from([0.5, 1.5, 4.0]), Cluster.collect),
    "crash": (st.tuples(st.sampled_from([1, 3, -9, -11, -6, 137]), st.sampled_from([0.0, 0.5, 3.0, 8.0])), _crash),
    "exception": (st.sampled_from([0.0, 0.1, 30.0]), _raise),
    "poison": (st.tuples(st.integers(1, 200), st.sampled_from(["hang", "kill", "raise"])), _poison),
    "freeze": (st.sampled_from([6.0, 100.0, 1000.0]), lambda c, rank, at_s, how: c.freeze(at_s, how)),
    "supervisor stopped": (st.sampled_from([6.0, 60.0]), lambda c, rank, at_s, how: c.stop_supervisor(at_s, how)),
    "supervisor killed": (st.tuples(st.sampled_from([0.3, 3.0, 20.0]), st.booleans()), _restart),
    "hold": (st.floats(1, 200), _hold),
    "signal": (st.sampled_from([2, 15]), lambda c, rank, at_s, how: c.signal(how, at_s)),
    "lost": (st.tuples(st.sampled_from(ORDERS), st.integers(1, 3)), _lose),
    "late": (st.tuples(st.sampled_from(ANSWERED), st.sampled_from([5.0, 35.0, 50.0])), _delay),
    "twice": (st.sampled_from(ANSWERED), lambda c, rank, at_s, how: c.repeat(how)),
    "raised lost": (st.none(), _lose_raised),
}


@st.composite
def happenings(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(HAPPENINGS)) -> Happening:
    what = draw(st.sampled_from(kinds))
    return Happening(what, draw(st.integers(0, 15)), draw(times), draw(HAPPENINGS[what][0]))


def play(ranks: int, plan: Plan, run: ev.Settings, what: list[Happening], seed: int) -> Cluster:
    """Play it to its end; what must never happen is checked on the way."""
    cluster = Cluster(ranks, plan=plan, settings=run, seed=seed)
    for happening in what:
        happening.befall(cluster)
    cluster.run(UNTIL_S)
    return cluster


def check(cluster: Cluster) -> None:
    """No incident wedges, budgets hold, time is accounted for, replay decides the same."""
    cluster.check_end()
    cluster.replay()
    state, summary = cluster.engine.state, cluster.summary
    attempts = {attempt for _, attempt in cluster.stops}
    assert len(attempts) <= state.settings.max_restarts + 1
    assert state.restarts <= state.settings.max_restarts
    if state.settings.max_no_progress:
        assert state.no_progress <= state.settings.max_no_progress
    for incident in cluster.incidents.values():
        if incident.recovered_s is not None:
            assert incident.recovered_s >= incident.detected_s
    if summary is not None:
        assert summary.outcome in ("finished", "failed", "gave_up", "interrupted")
        assert (summary.exit_code == 0) is (summary.outcome == "finished")
        assert [a["attempt"] for a in summary.attempts] == list(range(len(summary.attempts)))
        booked_s = summary.goodput * summary.wall_s + sum(summary.lost_s.values())
        assert abs(booked_s - summary.wall_s) < 0.01 * summary.wall_s + 0.01


@played
@given(
    st.sampled_from([1, 2, 8, 16]),
    plans,
    run_settings,
    st.lists(happenings(), min_size=1, max_size=8),
    st.integers(0, 99),
)
def test_whatever_happens(ranks: int, plan: Plan, run: ev.Settings, what: list[Happening], seed: int) -> None:
    """Long on a busy machine: it computes."""
    check(play(ranks, plan, run, what, seed))


HARMLESS = (
    "decoy",
    "pause",
    "data pause",
    "moment stopped",
    "freeze",
    "supervisor stopped",
    "supervisor killed",
    "lost",
    "late",
    "twice",
)


@played
@given(
    st.sampled_from([1, 2, 8]),
    plans,
    st.booleans(),
    st.lists(happenings(HARMLESS), min_size=1, max_size=12),
    st.integers(0, 99),
)
def test_a_healthy_run_is_never_touched(
    ranks: int, plan: Plan, has_hooks: bool, what: list[Happening], seed: int
) -> None:
    """Long on a busy machine: it computes."""
    plan = Plan(**{**vars(plan), "has_hooks": has_hooks})
    cluster = play(ranks, plan, ev.Settings(), what, seed)
    assert cluster.incidents == {} and cluster.stops == []
    check(cluster)


@played
@given(
    st.sampled_from([2, 8, 16]),
    plans.filter(lambda plan: plan.total_steps > 10**5),
    st.sampled_from(act.FAULTS),
    st.floats(450, 900),
    st.integers(0, 99),
)
def test_a_fault_out_of_the_blue_is_found_named_and_mended(
    ranks: int, plan: Plan, fault: act.Activity, at_s: float, seed: int
) -> None:
    """Long: many runs of virtual time, each with another fault."""
    cluster = Cluster(ranks, plan=plan, seed=seed)
    cluster.do(fault, ranks - 1, at_s)
    while not any(one.recovered_s for one in cluster.hangs) and not cluster.is_over and cluster.now_s < UNTIL_S:
        cluster.run(cluster.now_s + AFTER_S)
    cluster.run(cluster.now_s + AFTER_S)
    check(cluster)
    [incident] = cluster.hangs
    assert (incident.cause, cluster.named(incident)) == (fault.cause, [ranks - 1])
    assert incident.recovered_s is not None
    assert incident.detected_s - at_s < 130 + 4 * plan.step_s + 3 * plan.save_s


@settings(max_examples=5)
@given(st.lists(happenings(("fault", "decoy", "crash", "pause", "supervisor killed")), min_size=1, max_size=3))
def test_whatever_happens_to_256_ranks(what: list[Happening]) -> None:
    cluster = Cluster(256, plan=Plan(step_s=2.0), is_journalled=False)
    for happening in what:
        Happening(happening.what, happening.rank * 17, happening.at_s / 10, happening.how).befall(cluster)
    cluster.run(400)
    cluster.check_end()


@settings(max_examples=1, database=None)
@pytest.mark.parametrize("what", HAPPENINGS)
@given(data=st.data())
def test_each_can_happen_by_itself(what: str, data: st.DataObject) -> None:
    how = data.draw(HAPPENINGS[what][0])
    check(play(2, Plan(), ev.Settings(), [Happening(what, 1, 100.0, how)], seed=1))
