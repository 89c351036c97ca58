"""The timeline that reports are drawn from: what it keeps, and that it stays small."""

from __future__ import annotations

import sys
import time
import tracemalloc
from typing import Any

import pytest

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.report.timeline.rank_track import BoundedSegments, Kinds, Points
from guardrun.supervisor.report.timeline.timeline import GAUGE_POINTS, TRAINING, RankRow, Segment, Timeline
from tests.report.samples import begin_attempt, report, told_timeline


def row(timeline: Timeline, from_s: float = 0.0, to_s: float | None = None) -> RankRow:
    return timeline.view(from_s, to_s).rows[0]


def kinds(segments: list[Segment]) -> list[tuple[str, float, float]]:
    return [(s.kind, round(s.start_s, 1), round(s.end_s, 1)) for s in segments]


def fed(*reports: tuple[float, dict[str, Any]]) -> Timeline:
    timeline = Timeline()
    begin_attempt(timeline, 0, 1, 0.0)
    for at_s, values in reports:
        event = ev.NodeReport(node="n", attempt=0, ranks=[ev.RankReport(global_rank=0, **values)])
        timeline.feed(event, at_s)
    assert timeline.trouble == ""
    return timeline


def test_phases_follow_on_each_other() -> None:
    timeline = fed((1.0, {"phase": "train"}), (5.0, {"phase": "eval"}), (7.0, {"phase": "train"}))
    timeline.feed(ev.Ticked(), 10.0)
    assert kinds(row(timeline).phases) == [
        ("start", 0.0, 1.0),
        ("train", 1.0, 5.0),
        ("eval", 5.0, 7.0),
        ("train", 7.0, 10.0),
    ]
    assert kinds(row(timeline, 4.0, 6.0).phases) == [("train", 4.0, 5.0), ("eval", 5.0, 6.0)]


def test_what_a_rank_suffers_lies_over_its_phase() -> None:
    timeline = fed(
        (1.0, {"phase": "train"}),
        (2.0, {"phase": "train", "gc_since_s": 1.5}),
        (3.0, {"phase": "train", "in_save_since_s": 2.5}),
        (4.0, {"phase": "train", "state": "T"}),
        (6.0, {"phase": "train"}),
    )
    assert kinds(row(timeline).overlays) == [("gc", 1.5, 3.0), ("saving", 2.5, 4.0), ("stopped", 4.0, 6.0)]


def test_silence_is_what_is_longer_than_usual() -> None:
    steps = [(float(n), {"phase": "train", "progress": n, "progress_s": float(n), "step": n}) for n in range(1, 11)]
    timeline = fed(*steps, (20.0, {"phase": "train", "progress": 11, "progress_s": 20.0, "step": 11}))
    timeline.feed(ev.Ticked(), 21.0)
    assert kinds(row(timeline).overlays) == [("silent", 10.0, 20.0)]
    timeline.feed(ev.Ticked(), 30.0)
    assert kinds(row(timeline).overlays) == [("silent", 10.0, 20.0), ("silent", 20.0, 30.0)]


def test_slow_steps_are_no_silence() -> None:
    steps = [(8.0 * n, {"phase": "train", "progress": n, "progress_s": 8.0 * n, "step": n}) for n in range(1, 30)]
    found = kinds(row(fed(*steps)).overlays)
    assert len(found) <= 2, found  # until it is known what is usual


def test_a_long_start_is_no_silence() -> None:
    timeline = fed(
        (1.0, {"progress": 1, "progress_s": 1.0}), (60.0, {"phase": "train", "progress": 2, "progress_s": 60})
    )
    assert row(timeline).overlays == []


def test_what_training_computes_is_kept_longer_than_it_is_kept_in_full() -> None:
    """The median of a report's ranks; what is not finite is left out, and no number stays flat for lack of points."""

    def metrics(loss: float | None) -> dict[str, Any]:
        return {"metrics": ev.TrainingMetrics(1, 2, loss=loss, learning_rate=0.1)}

    timeline = fed((1.0, metrics(3.0)), (5.0, metrics(None)), (9.0, metrics(2.0)))
    assert timeline.gauges(0.0, 10.0) == {
        (TRAINING, "loss"): [(1.0, 3.0), (9.0, 2.0)],
        (TRAINING, "learning_rate"): [(1.0, 0.1), (5.0, 0.1), (9.0, 0.1)],
    }
    left_out = fed(*((at_s, {"metrics": ev.TrainingMetrics(1, 2, left_out=int(at_s))}) for at_s in (1.0, 2.0)))
    assert left_out.gauges(0.0, 10.0) == {(TRAINING, "left_out"): [(1.0, 1), (2.0, 2)]}
    ranks = [ev.RankReport(global_rank=rank, **metrics(float(rank))) for rank in (0, 1, 8)]
    timeline.feed(ev.NodeReport(node="n", attempt=0, ranks=ranks), 10.0)
    assert timeline.gauges(0.0, 10.0)[TRAINING, "loss"][-1] == (10.0, 1.0)
    many = fed(*((float(at_s), metrics(float(at_s))) for at_s in range(1, 10 * GAUGE_POINTS)))
    points = many.gauges(0.0, 1e9)[TRAINING, "loss"]
    assert len(points) <= GAUGE_POINTS and points[0] == (1.0, 1.0) and points[-1][0] == 10.0 * GAUGE_POINTS - 1
    assert points == sorted(points)


def test_attempts_their_steps_and_their_ends() -> None:
    view = told_timeline().view()
    assert [(a.number, a.started_s, a.ended_s, a.resumed_step) for a in view.attempts] == [
        (0, 0.2, 43.6, None),
        (1, 44.0, None, 20),
    ]
    assert len(view.rows) == 8
    assert kinds(view.rows[1].phases)[-1] == ("train", 45.0, 49.0)
    assert ("silent", 10.0, 43.5) in kinds(view.rows[1].overlays)
    assert [mark.kind for mark in view.marks] == ["saved", "fell"]
    assert [(p.step, p.attempt) for p in view.front][-2:] == [(32, 1), (36, 1)]
    assert view.rows[0].last_step == 36


def test_a_window_holds_what_is_in_it() -> None:
    view = told_timeline().view(44.5, 60.0)
    assert [a.number for a in view.attempts] == [1]
    assert all(s.start_s >= 44.5 and s.end_s <= 60.0 for r in view.rows for s in (*r.phases, *r.overlays))
    assert min(point.at_s for point in view.front) >= 44.5


def test_events_out_of_place_are_passed_over() -> None:
    timeline = Timeline()
    ranks = [ev.RankReport(global_rank=0, step=3)]
    timeline.feed(ev.NodeReport(node="n", attempt=0, ranks=ranks), 1.0)
    timeline.feed(ev.RankExited(attempt=0, global_rank=0, pid=1, exitcode=1, at_s=1.0), 2.0)
    begin_attempt(timeline, 1, 1, 3.0)
    timeline.feed(ev.NodeReport(node="n", attempt=0, ranks=ranks), 4.0)
    timeline.feed(ev.NodeReport(node="n", attempt=1, ranks=[ev.RankReport(global_rank=99, step=5)]), 4.0)
    timeline.feed(ev.AttemptStopped(attempt=7, exitcodes={}, stopped_by_us=[]), 4.0)
    timeline.feed(ev.RunContinued(settings=ev.Settings(), node="n", world_size=1, wall_s=1.0), 5.0)
    assert timeline.trouble == ""
    assert timeline.view().attempts[0].ended_s == 4.0, "whatever ran had its last word then"
    assert Timeline().view().rows == []


def test_a_bug_in_it_is_nobodys_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline()
    monkeypatch.setattr(timeline, "_start", None)
    begin_attempt(timeline, 0, 1, 0.0)
    assert "AttemptStarted" in timeline.trouble


def test_a_thousand_ranks_for_an_hour_take_megabytes() -> None:
    """Long on a busy machine: it computes, and every allocation is traced."""
    tracemalloc.start()
    try:
        timeline = Timeline()
        begin_attempt(timeline, 0, 1024, 0.0)
        before = tracemalloc.get_traced_memory()[0]
        began_s = time.process_time()
        rounds = 150
        for at_s in range(1, rounds):
            report(
                timeline,
                0,
                1024,
                float(at_s),
                at_s * 3,
                phase="train" if at_s % 2 else "data",
                gc_since_s=float(at_s) if at_s % 3 else 0.0,
            )
        took_s = time.process_time() - began_s
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size < 8 << 20, f"{size / 1e6:.1f} MB"
    # Under tracemalloc everything is several times slower.
    assert took_s / rounds < 0.25, f"{took_s / rounds * 1000:.0f} ms a second of a thousand ranks"
    assert timeline.trouble == ""
    assert len(timeline.view(rounds - 10.0).rows[0].phases) >= 8, "what is recent is as it was"


def test_many_attempts_are_bounded() -> None:
    timeline = Timeline()
    for attempt in range(30):
        begin_attempt(timeline, attempt, 4, attempt * 10.0)
        for at_s in range(1, 9):
            report(timeline, attempt, 4, attempt * 10.0 + at_s, at_s, phase="train")
    view = timeline.view()
    assert len(view.attempts) == 30
    assert {p.attempt for p in view.front} == set(range(30))
    assert max(s.end_s for s in view.rows[0].phases) == pytest.approx(298.0)


def test_strips_become_coarser_and_lose_no_time() -> None:
    names, strip = Kinds(), BoundedSegments(32, is_filled=True)
    train, data = names.index("train"), names.index("data")
    for n in range(1000):
        strip.add(train if n % 2 else data, float(n), n + 1.0)
    found = strip.segments(names, 0.0, 1000.0)
    assert len(found) <= 32
    assert (found[0].start_s, found[-1].end_s) == (0.0, 1000.0)
    assert sum(s.end_s - s.start_s for s in found) == pytest.approx(1000.0)
    assert found[-1] == Segment("train", 999.0, 1000.0)


def test_points_keep_their_ends() -> None:
    points = Points(64)
    for n in range(10_000):
        points.add(float(n), n)
    found = points.points(0.0, 1e9)
    assert len(found) <= 64 and found[0] == (0.0, 0) and found[-1] == (9999.0, 9999)
    assert found == sorted(found)


def test_kinds_past_what_a_byte_holds_are_other() -> None:
    names = Kinds()
    indices = [names.index(f"phase {n}") for n in range(400)]
    assert max(indices) < 256 and indices[-1] == 0
    assert sys.getsizeof(names.names) < 10_000
