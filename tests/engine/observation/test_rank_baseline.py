"""Properties of the comparison, whatever ranks do: nobody is named without being behind, and waited for."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.rank_baseline import EARLY, FACTOR, FEW, LOSS, RankBaseline, suspects
from guardrun.supervisor.engine.observation.step_times import Share, StepTimes, Window, high, middle, parts_of

works = st.lists(st.floats(0.01, 2.0), min_size=2, max_size=12)


def window_of(work: list[float], waited: list[float] | None = None) -> Window:
    """A window of a job in step, whose ranks work for so long in each step."""
    step_s = max(work) + 0.01
    waits = waited or [step_s - own_s for own_s in work]
    shares = {
        rank: Share(step_s, own_s, wait_s, 0.0, 0.0)
        for rank, (own_s, wait_s) in enumerate(zip(work, waits, strict=True))
    }
    return Window(0.0, 20.0, shares, parts_of(list(shares.values())), 40)


def learned(work: list[float]) -> RankBaseline:
    usual = RankBaseline(world_size=len(work))
    for _ in range(EARLY):
        usual.learn(window_of(work), set())
    return usual


@given(works)
def test_who_is_as_ever_is_never_suspected(work: list[float]) -> None:
    """Whatever the pattern is."""
    assert suspects(window_of(work), learned(work), dict.fromkeys(range(len(work)), "a")) == []


@given(works, st.data())
def test_who_is_suspected_holds_all_others_up(before: list[float], data: st.DataObject) -> None:
    size = len(before)
    now = data.draw(st.lists(st.floats(0.01, 2.0), min_size=size, max_size=size))
    nodes = {rank: f"node-{rank // 4}" for rank in range(size)}
    window = window_of(now)
    found = suspects(window, learned(before), nodes)
    named = {each.rank for each in found}
    others = [now[rank] for rank in range(size) if rank not in named]
    for each in found:
        assert now[each.rank] > max(others) and each.loss_s <= now[each.rank] - max(others) + 1e-9
        assert window.parts.step_s / (window.parts.step_s - each.loss_s) >= FACTOR - 1e-9
    if found:
        assert window.parts.step_s > window_of(before).parts.step_s
        are_few = len(named) <= max(1, size // FEW)
        assert are_few or len({nodes[rank] for rank in named}) == 1 < len(set(nodes.values()))


@given(st.integers(2, 12), st.data())
def test_a_rank_of_equals_that_becomes_slow_is_suspected(size: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, size - 1))
    factor = data.draw(st.floats(1.3, 10.0))
    work = [0.5] * size
    usual = learned(work)
    work[rank] *= factor
    assert [each.rank for each in suspects(window_of(work), usual, {})] == [rank]


@given(st.lists(st.floats(0.2, 2.0), min_size=2, max_size=12), st.floats(0.5, 10.0))
def test_a_job_that_changes_as_a_whole_suspects_nobody(work: list[float], factor: float) -> None:
    """A larger batch, a longer sequence: places stay, whatever they are (communication's share shrinks a little)."""
    usual = learned(work)
    assert suspects(window_of([own_s * factor for own_s in work]), usual, {}) == []


@given(works, st.data())
def test_nobody_is_suspected_for_whom_nobody_waits(work: list[float], data: st.DataObject) -> None:
    usual = learned(work)
    slow = list(work)
    slow[data.draw(st.integers(0, len(work) - 1))] *= 5
    assert suspects(window_of(slow, [0.0] * len(work)), usual, {}) == []


def test_learning_survives_ranks_that_come_late() -> None:
    usual = learned([0.5, 0.5])
    window = window_of([0.5, 0.5, 2.0])
    assert suspects(window, usual, {}) == []
    usual.learn(window, set())
    assert set(usual.excess) == {0, 1, 2}


def test_what_has_changed_for_most_is_learned_anew() -> None:
    usual = learned([0.5] * 8)
    other = window_of([0.3, 0.7] * 4)
    for _ in range(3 + EARLY):
        assert suspects(other, usual, {}) == []
        usual.learn(other, set())
    assert usual.excess[1] > usual.excess[0] + LOSS


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=300))
def test_medians_and_the_highest(values: list[float]) -> None:
    assert min(values) <= middle(values) <= high(values) <= max(values)
    assert sum(value <= middle(values) for value in values) >= len(values) / 2


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_parts_are_no_more_than_the_step(rows: list[tuple[float, float, float, float]]) -> None:
    shares = [Share(sum(row), *row) for row in rows]
    parts = parts_of(shares)
    assert all(value >= 0 for value in parts)
    assert parts.work_s + parts.data_s + parts.gc_s <= max(share.step_s for share in shares) + 1e-9


def test_a_window_waits_for_most_ranks_and_then_gives_up_on_none() -> None:
    times = StepTimes()
    reports = [ev.RankReport(global_rank=n, spent=ev.StepBreakdown(10, 1.0, 0.1, 0.0, 0.0)) for n in range(10)]
    times.add_report(ev.NodeReport(node="a", attempt=0, ranks=reports))
    times.begin(10.0, 10, 20.0)
    some = [ev.RankReport(global_rank=n, spent=ev.StepBreakdown(40, 4.0, 0.4, 0.0, 0.0)) for n in range(7)]
    times.add_report(ev.NodeReport(node="a", attempt=0, ranks=some))
    assert times.is_due(31.0, 40) and times.close(31.0, 40, 20.0) is None
    assert not times.is_due(32.0, 41), "not with every report"
    rest = [ev.RankReport(global_rank=n, spent=ev.StepBreakdown(40, 4.0, 0.4, 0.0, 0.0)) for n in range(7, 10)]
    times.add_report(ev.NodeReport(node="b", attempt=0, ranks=rest))
    window = times.close(42.0, 50, 20.0)
    assert window is not None and len(window.shares) == 10 and window.began_s == 10.0
    assert math.isclose(window.parts.step_s, 0.1) and math.isclose(window.shares[3].own_s, 0.09)
