"""What is shown of a run: folded, bounded, whatever its size, and whatever its journal and its supervisor say."""

from __future__ import annotations

import math
import time
from typing import Any

import msgspec
import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.query.journal_reader import parse_entry
from guardrun.supervisor.watch.rank_oddness import BAD, FINE, NOTE, WARN, Typical, judge
from guardrun.supervisor.watch.rank_view import MAX_CELLS, MAX_ROWS
from guardrun.supervisor.watch.run_series import MAX_SPANS, RankSteps, RunSeries
from guardrun.supervisor.watch.run_status import RankStatus, parse_status
from guardrun.supervisor.watch.run_view import make_view
from tests.watch.stories import GB, STALL, entry_of, report, series_of, status, story, view_of


def test_a_run_of_eight_ranks() -> None:
    view = view_of(8)
    assert (view.run_id, view.state, view.stall, view.step) == ("20261126-pretrain-1a2b", "stalled", STALL, 600)
    assert [use.name for use in view.lost] == ["detecting", "starting"]
    assert view.step_times[-1].value == pytest.approx(0.4, rel=0.15)
    assert view.losses[0].value > view.losses[-1].value > 1.0
    shares = {use.name: use.share for use in view.time}
    work = (7 * 0.6 + 0.95) / 8
    assert shares == pytest.approx({"work": work, "waiting": 0.8 * (1 - work), "data": 0.2 * (1 - work), "gc": 0.0})
    host, device = view.memory
    assert (host.most, host.rank, host.limit) == (13 * GB + 7000, 7, 256 * GB)
    assert (device.name, device.most, device.rank, device.limit) == ("device", 61 * GB + 7, 7, 79 * GB)
    assert [(one.rank, one.temp_c) for one in view.heat] == [(2, 71.0)]
    first, second, *others = view.ranks.rows
    assert (first.rank, first.tone, first.why) == (1, BAD, "holds the run up")
    assert (second.rank, second.tone) == (3, WARN) and second.why == "works 1.6 × the median"
    assert second.work_s == pytest.approx(0.38, rel=0.15)
    assert others[0].waited_s == pytest.approx(0.4 * 0.4 * 0.8, rel=0.15)
    assert view.ranks.odd == 2 and {row.tone for row in others} == {FINE}
    assert view.log[-1].text == STALL and view.log[-1].level == "warn"
    assert [line.text for line in view.log if "saved" in line.text][-1] == "saved at step 600: /data/out/ckpt_600.pt"


def test_ten_thousand_ranks() -> None:
    """Each list has its bound; a look at all of it takes well under a second of a CPU."""
    entries = list(story(10_000, 20))
    series = RunSeries()
    began_s = time.process_time()
    series.feed(entries)
    fed_s = (time.process_time() - began_s) / 2
    told = msgspec.msgpack.encode(status(10_000))
    began_s = time.process_time()
    view = make_view(parse_status(msgspec.msgpack.decode(told)), series, source="supervisor", why="")
    made_s = time.process_time() - began_s
    print(f"10,000 ranks: {fed_s:.3f} s for what they all report, {made_s:.3f} s for the view of it, {len(told)} bytes")
    assert fed_s < 2.0 and made_s < 2.0
    ranks = view.ranks
    assert (ranks.total, ranks.nodes, ranks.odd, len(ranks.rows)) == (10_000, 1250, 2, MAX_ROWS)
    assert [row.rank for row in ranks.rows[:2]] == [1, 3]
    assert (len(ranks.cells), ranks.cell_word, ranks.cell_size) == (1250, "node", 1)
    assert ranks.cells[0] == BAD and set(ranks.cells[1:]) == {FINE}
    assert [(group.count, group.state, group.first_step) for group in ranks.groups] == [(10_000, "sleeping", 600)]
    work = ranks.spreads[0]
    assert work.name == "work a step" and work.median == pytest.approx(0.27, rel=0.05)
    assert work.high == pytest.approx(0.43, rel=0.05)
    assert sum(work.bins) == 10_000 and work.bins[-1] == 1
    assert len(msgspec.json.encode(view)) < 100_000


def test_more_cells_than_a_map_has() -> None:
    told = status(3 * MAX_CELLS)
    for rank in told["ranks"]:
        rank["node"] = "one"
    told["ranks"][4000]["state"] = "T"
    ranks = make_view(parse_status(told), RunSeries(), source="supervisor", why="").ranks
    assert (len(ranks.cells), ranks.cell_word, ranks.cell_size) == (MAX_CELLS, "rank", 3)
    assert ranks.cells[1333] == BAD


TYPICAL = Typical(step=100.0, work_s=0.1, culprits=frozenset({9}))


@pytest.mark.parametrize(
    ("changes", "tone", "why"),
    [
        ({}, FINE, ""),
        ({"global_rank": 9}, BAD, "holds the run up"),
        ({"exitcode": -9}, BAD, "ended: signal 9"),
        ({"exitcode": 0}, FINE, ""),
        ({"state": "T"}, BAD, "stopped"),
        ({"state": "D", "last_progress_s": 12.0}, BAD, "uninterruptible wait, no progress for 12 s"),
        ({"state": "D"}, FINE, ""),
        ({"age_s": 60.0, "last_beat_s": 60.0}, WARN, "its node was heard 1 min ago"),
        ({"last_beat_s": 11.0}, WARN, "no beat for 11 s"),
        ({"last_progress_s": 20.0}, WARN, "no progress for 20 s"),
        ({"last_progress_s": 14.0}, FINE, ""),
        ({"loss": math.nan}, WARN, "loss is nan"),
        ({"step": 90}, WARN, "10 steps behind"),
        ({"step": 97}, FINE, ""),
        ({"data_share": 0.4}, NOTE, "40% of its time waiting for data"),
        ({"gc_share": 0.2}, NOTE, "20% of its time in garbage collections"),
    ],
)
def test_how_a_rank_stands_out(changes: dict[str, Any], tone: int, why: str) -> None:
    rank = RankStatus(**{"global_rank": 0, "state": "S", "step": 100, "last_beat_s": 0.5, "loss": 2.0, **changes})
    found = judge(rank, RankSteps(0.2, 0.11, 0.05), TYPICAL)
    assert (found.tone, found.why) == (tone, why)


def test_a_rank_that_works_longer_than_the_median() -> None:
    rank = RankStatus(global_rank=0)
    assert judge(rank, RankSteps(0.2, 0.17, 0.0), TYPICAL).why == "works 1.7 × the median"
    assert judge(rank, RankSteps(0.2, 0.14, 0.0), TYPICAL).tone == FINE
    quick = Typical(step=None, work_s=0.001, culprits=())
    assert judge(rank, RankSteps(0.02, 0.01, 0.0), quick).tone == FINE


def test_memory_of_a_long_run_is_bounded() -> None:
    series = RunSeries()
    for number in range(3 * MAX_SPANS):
        told = ev.NodeReport(node="n", attempt=0, ranks=[report(0, number * 7)])
        series.feed([entry_of(number, number * 3.0, told)])
    assert len(series.spans) <= MAX_SPANS and series.folds > 1
    assert sum(span.steps for span in series.spans) == 7 * (3 * MAX_SPANS - 1)
    assert [span.at_s for span in series.spans] == sorted(span.at_s for span in series.spans)


def test_steps_before_what_was_seen_are_not_counted() -> None:
    """The journal is read from somewhere: the first report is of steps from nobody knows when."""
    late = list(story(2))[30:]
    assert series_of(late).spans[0].steps == 0
    assert max(span.step_time_s() or 0.0 for span in series_of(late).spans) == pytest.approx(0.45, rel=0.05)


def test_what_is_none_of_ours_is_passed_over() -> None:
    good = list(story(2, 20))
    lines = (
        b'{"n": 5, "t": 3.0, "event": {"type": "node_report", "ranks": 7}}',
        b'{"n": 6, "t": 3.0, "event": {"type": "node_report", "attempt": 0, "node": "n", "ranks": [{"spent": [1]}]}}',
        b'{"n": 7, "t": 3.0, "event": {"type": "of_a_later_version", "ranks": []}, "actions": [{"type": "say"}, 7]}',
    )
    strange = [found for line in lines if (found := parse_entry(line)) is not None]
    assert len(strange) == len(lines)
    broken = entry_of(8, 3.0, ev.NodeReport(node="n", attempt=0, ranks=[_broken()]))
    series = series_of([good[0], *strange, broken, *good[1:]])
    assert all(math.isfinite(span.took_s) for span in series.spans)
    assert series_of(good).steps == series.steps


def _broken() -> ev.RankReport:
    return ev.RankReport(
        global_rank=0,
        spent=ev.StepBreakdown(5, math.inf, 0.0, 0.0, 0.0),
        metrics=ev.TrainingMetrics(1, 5, math.nan, math.inf, None),
    )


@pytest.mark.parametrize("told", [{"run_id": 3}, {"run_id": "a", "ranks": [{"rank": 1}]}, {}])
def test_an_answer_that_is_none(told: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parse_status(told)


def test_curves_go_back_as_far_as_is_asked_for() -> None:
    series = series_of(story(2))
    short = make_view(parse_status(status(2)), series, source="supervisor", why="", window_s=100.0)
    assert 0 < len(short.step_times) < len(view_of(2).step_times)
    assert short.step_times[0].at_s >= series.last_s - 102.0


def test_what_nodes_and_hooks_say() -> None:
    nodes = [{"node": "n1", "standing": "ready"}, {"node": "n2", "standing": "lost", "why": "silent for 30 s"}]
    notes = ["rank 0: gc policy: not followed", "rank 1: gc policy: not followed", "rank 1: other"]
    view = view_of(2, nodes=nodes, notes=notes)
    assert view.notes == ["n2 is lost: silent for 30 s", "gc policy: not followed (2 ranks)", "other (rank 1)"]


@pytest.mark.parametrize(
    ("state", "kind", "why"), [("suspicious", "hang", "holds the run up"), ("training", "hang", "")]
)
def test_who_holds_the_run_up_by_an_incident(state: str, kind: str, why: str) -> None:
    """A hang that nobody ends is an incident and no stall any more; past it, nobody is named."""
    incident = {"id": "001", "kind": "hang", "culprits": [{"rank": 2, "node": "node-0"}, {"rank": None}]}
    view = view_of(4, 20, state=state, stall=None, incidents=[incident])
    assert {row.rank: row.why for row in view.ranks.rows}[2] == why
