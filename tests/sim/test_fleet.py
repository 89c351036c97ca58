"""Many nodes, whatever befalls them: the run gets on, or says why not; nobody innocent is left out; replay agrees."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from benchmarks.sim import account as use
from benchmarks.sim import patience
from benchmarks.sim.failures import Failure, Truth, draw
from benchmarks.sim.parameters import Parameters
from benchmarks.sim.torchrun import Torchrun
from benchmarks.sim.world import World
from guardrun.supervisor.engine.engine import Engine
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model import transitions
from guardrun.supervisor.engine.model.hang_patience import Sensitivity
from guardrun.supervisor.engine.state.job_nodes import Standing, is_doubt
from tests.engine.invariants import check_cheap, check_costly

_EXAMPLES = settings.default.max_examples if settings.default else 100
# Shrinking a story takes longer than reading it; a soak may take its time.
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate, *([Phase.shrink] if _EXAMPLES > 100 else [])]
played = settings(max_examples=max(1, _EXAMPLES // 4), phases=_PHASES)
HOUR_S = 3600.0
SMALL = Parameters(
    nodes=4,
    spares=1,
    pool=12,
    ranks_a_node=2,
    switch_nodes=4,
    step_s=5.0,
    start_s=30.0,
    rate=200.0,
    found_s=HOUR_S,
    repair_s=HOUR_S,
    human_s=300.0,
    requeue_s=60.0,
)


@dataclass
class Story:
    """A world, all that its engine was told, and what it answered."""

    parameters: Parameters
    failures: list[Failure]
    journal: list[tuple[float, ev.Event, bytes]] = field(default_factory=list)

    def play(self, until_s: float) -> World:
        world = self.world = World(self.parameters, self.failures, told=self._told)
        world.run(until_s)
        check_costly(world.engine)
        assert world.account.wall_s == pytest.approx(until_s), "time has been lost"
        return world

    def _told(self, at_s: float, event: ev.Event, actions: list[ac.Action]) -> None:
        self.journal.append((at_s, event, msgspec.json.encode(actions)))
        check_cheap(self.world.engine)

    def replayed(self) -> bool:
        engine = Engine()
        return all(msgspec.json.encode(engine.handle(event, at_s)) == then for at_s, event, then in self.journal)

    @property
    def causes(self) -> list[str]:
        return [incident.cause for incident in self.world.incidents.values()]


def play(until_s: float, *failures: Failure, **parameters: Any) -> Story:
    story = Story(replace(SMALL, **parameters), list(failures))
    story.play(until_s)
    assert story.replayed()
    return story


failures = st.builds(
    Failure,
    at_s=st.floats(5.0, HOUR_S),
    truth=st.sampled_from(list(Truth)),
    node=st.integers(1, 11),
    lasts_s=st.floats(1.0, 1500.0),
    luck=st.floats(0.0, 0.99),
)


fleets = st.builds(
    lambda nodes, spares, may_shrink, ranks, seed: replace(
        SMALL, nodes=nodes, spares=spares, least=max(1, nodes - 1) * may_shrink, ranks_a_node=ranks, seed=seed
    ),
    st.integers(2, 6),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([1, 2, 8]),
    st.integers(0, 99),
)


@played
@given(
    st.lists(failures, min_size=1, max_size=12),
    fleets,
)
@example(  # a minute after it began to wait, by less than a float can tell
    [Failure(2009.539799918012, Truth.GPU_GONE, 1, 1.0)], replace(SMALL, nodes=2, spares=0, least=0, ranks_a_node=1)
)
@example(  # 2075.680783 - 1475.680783 < 600, for a float
    [
        Failure(13.0, Truth.STORAGE_ERROR, 10, 1.0, 0.8781694336339646),
        Failure(940.3615779728208, Truth.HANG, 6, 897.04899280065, 0.0),
        Failure(1086.9562866730084, Truth.ALL_WAIT, 10, 9.191658189353822, 0.5614033983368573),
        Failure(1242.6106397021263, Truth.STORAGE_HANG, 11, 1199.8808821056334, 0.6222247719207642),
        Failure(1431.15925376155, Truth.NODE_DEAD, 1, 1063.555663753817, 0.5788619295243062),
    ],
    replace(SMALL, nodes=3, spares=0, least=0, ranks_a_node=8, seed=11),
)
def test_whatever_befalls_a_fleet(what: list[Failure], parameters: Parameters) -> None:
    """Long: many fleets, each with other faults."""
    story = Story(parameters, sorted(what, key=lambda failure: failure.at_s))
    reached: list[int] = []
    until_s = 5 * HOUR_S
    # Everything is over, and whatever was bad has been found, well before the end: by then it must get on.
    story.failures.append(Failure(3 * HOUR_S, Truth.CONTACT, 11, 6.0))
    world = story.world = World(parameters, story.failures, told=story._told)
    world.at(3.5 * HOUR_S, lambda: reached.append(best_step(world)))
    world.run(until_s)
    assert best_step(world) > reached[0], f"nothing has got on for hours: {world.engine.state.story}"
    assert story.replayed()
    check_costly(world.engine)
    fleet = world.engine.state.fleet
    assert fleet is not None
    whys = [m.why.split(":")[0] for m in fleet.members.values() if m.standing is Standing.OUT]
    assert len(set(whys)) == len(whys), "one culprit evicts one node"
    check_innocents(world)


def best_step(world: World) -> int:
    attempt = world.engine.state.attempt
    return max(world.engine.state.best_step, attempt.step if attempt else 0)


def check_innocents(world: World) -> None:
    """Who had no part in anything is left out for doubts alone: that often named for what nobody explains.

    The bound: with n incidents of no cause in a run, at most n // 2 nodes can be swapped for them.
    """
    doubts: Counter[str] = Counter()
    for incident in world.incidents.values():
        named = {culprit.node for culprit in incident.culprits}
        if is_doubt(incident) and len(named) == 1:
            doubts[named.pop()] += 1
    innocent = [(node, cause) for _, node, cause, was_true in world.evictions if not was_true]
    for node, cause in innocent:
        assert doubts[node] >= 2, f"{node} had nothing to do with {cause}"
    assert len(innocent) <= sum(doubts.values()) // 2


# Healthy ------------------------------------------------------------------------------------------------


def test_a_healthy_fleet_is_left_alone_for_weeks() -> None:
    """Now and then a node is not heard for a while, up to a minute; training goes on, and nobody says anything."""
    losses = [Failure(120.0 + 977.0 * n, Truth.CONTACT, 1 + n % 14, 1.0 + n * 7 % 59) for n in range(1200)]
    world = World(replace(SMALL, nodes=16, pool=24, step_s=20.0, rate=1.0), losses)
    world.run(14 * 24 * HOUR_S)
    assert not world.incidents and world.account.stops == 0
    assert world.engine.state.attempt is not None and world.engine.state.attempt.number == 0
    assert world.account.ratio > 0.98


def test_a_slow_node_is_not_left_out() -> None:
    story = play(HOUR_S, Failure(600.0, Truth.SLOW, 2, 1800.0))
    assert not story.causes and story.world.account.of(use.SLOW) > 300


# Lost ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spares", [4, 2])
def test_a_switch_that_is_down_exhausts_no_spares(spares: int) -> None:
    """All of its nodes are lost at once, for one stop; they are the next spares when it is up again."""
    failure = Failure(600.0, Truth.OUTAGE, 5, 300.0)
    story = play(2 * HOUR_S, failure, nodes=8, spares=spares)
    world = story.world
    assert world.account.stops == 1 and world.account.ends == 0
    assert story.causes == ["node_lost"] and not world.evictions
    fleet = world.engine.state.fleet
    assert fleet is not None
    assert all(m.standing in (Standing.READY, Standing.OUT) for m in fleet.members.values())
    assert sum(m.standing is Standing.OUT for m in fleet.members.values()) <= 1
    assert best_step(world) > 600


def test_a_flapping_node_stops_the_job_once_where_there_is_a_spare() -> None:
    flaps = [Failure(600.0 + 240 * n, Truth.CONTAINER, 2, 60.0) for n in range(10)]
    story = play(2 * HOUR_S, *flaps)
    assert story.world.account.stops == 1 and story.causes == ["node_lost"]


def test_a_node_that_returns_takes_the_place_of_the_next_that_is_lost() -> None:
    story = play(2 * HOUR_S, Failure(600.0, Truth.NODE_DEAD, 1, 900.0), Failure(2400.0, Truth.NODE_DEAD, 2, 9 * HOUR_S))
    assert story.causes == ["node_lost", "node_lost"] and story.world.account.ends == 0
    assert story.world.engine.state.phase is transitions.Phase.RUNNING
    assert story.world.engine.state.fleet is not None
    assert sorted(story.world.engine.state.fleet.placed) == ["n00000", "n00001", "n00003", "n00004"]


@pytest.mark.parametrize("after_s", [15.0, 35.0, 45.0])
@pytest.mark.parametrize("truth", [Truth.NODE_DEAD, Truth.CONTAINER])
def test_a_spare_that_fails_when_it_is_needed(truth: Truth, after_s: float) -> None:
    """Whether before it is chosen, while it starts, or before its first step: the next spare takes over by itself."""
    story = play(
        HOUR_S,
        Failure(600.0, Truth.NODE_DEAD, 2, 9 * HOUR_S),
        Failure(600.0 + after_s, truth, 4, 9 * HOUR_S),
        spares=2,
    )
    account = story.world.account
    assert account.ends == 0 and account.stops <= 2
    assert account.of(use.DETECTING) < 120
    assert story.world.engine.state.fleet is not None
    assert "n00005" in story.world.engine.state.fleet.placed and best_step(story.world) > 500


def test_a_bad_node_is_replaced_once_and_nobody_else() -> None:
    story = play(2 * HOUR_S, Failure(600.0, Truth.GPU_GONE, 2, 0.0, 0.3), spares=3)
    assert [node for _, node, _, _ in story.world.evictions[:1]] == ["n00002"]
    assert {node for _, node, _, _ in story.world.evictions} == {"n00002"} and story.world.account.innocents == 0


# What the large tables stand on ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_one_rank_a_node_tells_the_same_as_eight(seed: int) -> None:
    """Ten thousand nodes are played with one rank for a node's eight."""
    worlds = []
    for ranks in (1, 8):
        parameters = replace(SMALL, nodes=24, pool=36, spares=4, ranks_a_node=ranks, seed=seed, days=1.0)
        worlds.append(World(parameters, draw(parameters)).run())
    told = [[(i.cause, sorted({c.node for c in i.culprits})) for i in world.incidents.values()] for world in worlds]
    assert told[0] == told[1] and len(told[0]) > 10
    assert worlds[0].account.ratio == pytest.approx(worlds[1].account.ratio, abs=0.01)


def test_every_exit_told_or_all_at_once_decides_the_same() -> None:
    worlds = []
    for is_whole in (False, True):
        parameters = replace(SMALL, nodes=12, pool=20, spares=4, days=0.5, is_whole=is_whole)
        worlds.append(World(parameters, draw(parameters)).run())
    first, second = ([i.cause for i in world.incidents.values()] for world in worlds)
    assert first == second and worlds[0].account.spent_s == worlds[1].account.spent_s


def test_a_virtual_torchrun_books_all_its_time() -> None:
    for seed in range(3):
        parameters = replace(SMALL, nodes=64, pool=80, seed=seed, days=3.0, rate=20.0)
        account = Torchrun(parameters, draw(parameters)).run()
        assert account.wall_s == pytest.approx(parameters.wall_s, rel=1e-6)
        assert account.stops > 0 and 0 < account.ratio < 1
        worse = Torchrun(parameters, draw(parameters), recovers=0.3).run()
        assert worse.ratio <= account.ratio


@pytest.mark.parametrize("lasts_s", [3.0, 20.0, 45.0, 60.0])
@pytest.mark.parametrize("spares", [0, 1])
def test_a_node_that_does_not_run_for_a_while_is_neither_left_out_nor_kept_from_others(
    lasts_s: float, spares: int
) -> None:
    """It costs a stop where it is gone for longer than a node may be."""
    story = play(HOUR_S, Failure(600.0, Truth.FREEZE, 1, lasts_s), spares=spares)
    assert story.causes == (["node_lost"] if lasts_s > 40 else [])
    assert story.world.account.quarantined_innocents == 0
    fleet = story.world.engine.state.fleet
    assert fleet is not None and {member.standing for member in fleet.members.values()} == {Standing.READY}
    assert not any(incident.action == "isolate_node" for incident in story.world.incidents.values())
    assert best_step(story.world) > 400


@pytest.mark.parametrize(("sensitivity", "ended_s"), [("eager", 130.0), ("normal", 700.0), ("patient", 1900.0)])
def test_a_pause_is_ended_where_patience_is_over_and_a_hang_always(sensitivity: Sensitivity, ended_s: float) -> None:
    for lasts_s in (ended_s / 3, ended_s * 3):
        story = play(2 * HOUR_S, Failure(1200.0, Truth.PAUSE, 1, lasts_s), sensitivity=sensitivity)
        account = story.world.account
        assert (account.stops, account.false_stops) == ((0, 0) if lasts_s < ended_s else (1, 1))
        assert account.of(use.SLOW) <= min(lasts_s, ended_s) + SMALL.step_s
        assert best_step(story.world) > 800
    account = play(2 * HOUR_S, Failure(1200.0, Truth.HANG, 1), sensitivity=sensitivity).world.account
    assert (account.stops, account.false_stops) == (1, 0)
    assert account.of(use.DETECTING) < ended_s


def test_what_patience_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the page: who saves seldom pays more for a pause that is ended than for patience with a hang."""
    monkeypatch.setattr(patience, "ROOM", replace(patience.ROOM, nodes=4, pool=6))
    hangs, pauses = [patience.hangs(0)], [patience.pauses(0)]
    often, seldom = (
        {s: patience.price(s, every_s, pauses) for s in get_args(Sensitivity)} for every_s in (1.0, 3600.0)
    )
    assert often["eager"].each_s > often["normal"].each_s > often["patient"].each_s > 0
    assert often["eager"].stops == seldom["eager"].stops > often["normal"].stops
    assert seldom["eager"].each_s > 5 * often["eager"].each_s
    eager, normal, patient = (patience.price(setting, 1.0, hangs).each_s for setting in get_args(Sensitivity))
    assert eager < normal < patient


def test_a_job_that_is_suspended_together_trains_on() -> None:
    suspends = [Failure(at_s, Truth.SUSPEND, 1, lasts_s) for at_s, lasts_s in ((35.0, 900.0), (1500.0, 20.0))]
    story = play(2 * HOUR_S, *suspends, nodes=8, pool=16)
    assert story.causes == [] and story.world.account.stops == 0
    assert best_step(story.world) > 1000
