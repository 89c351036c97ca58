"""What every rank did when: phases, steps, pauses, as the engine's events tell them; for pages that draw it.

Fed with every event, live or from a journal; reads no clock and touches no file. Its memory is bounded whatever the
number of ranks and the length of the run (`rank_track.py`): some megabytes for a thousand ranks.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TypeVar

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.report.timeline.rank_track import Kinds, Segment, Track

MAX_MARKS = 512
FRONT_POINTS = 4096
MAX_GAUGES = 32
GAUGE_POINTS = 1024
"""Of each of them: an hour at the pace at which they are told."""
TRAINING = "training"
METRICS = ("loss", "grad_norm", "learning_rate", "left_out")
"""Fields of events.TrainingMetrics that are drawn; the last where it is not 0."""

Point = TypeVar("Point")


class AttemptSpan(msgspec.Struct, kw_only=True):
    """One attempt's time."""

    number: int
    started_s: float
    ended_s: float | None = None
    first_progress_s: float | None = None
    resumed_step: int | None = None
    ranks: int = 0


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """One moment worth a sign. kind: saved, raised, fell, skipped, held, unheld, changed (by hand)."""

    at_s: float
    kind: str
    text: str
    rank: int = -1


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's time within a window, all attempts in one row."""

    rank: int
    phases: list[Segment]
    overlays: list[Segment]
    """silent, gc, saving, stopped; over the phases."""
    steps: list[tuple[float, int]]
    """When steps were seen to be done; coarser the longer ago."""
    last_step: int | None = None
    exitcode: int | None = None
    exited_s: float | None = None


class FrontPoint(msgspec.Struct, frozen=True, array_like=True):
    """The furthest rank got to a step."""

    at_s: float
    step: int
    attempt: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a window of a run's time."""

    from_s: float
    to_s: float
    known_from_s: float
    """Nothing before is known: the first event that the timeline was fed with."""
    attempts: list[AttemptSpan]
    rows: list[RankRow]
    front: list[FrontPoint]
    marks: list[Mark]


class Timeline:
    """Feed it every event; `view` a window of it."""

    def __init__(self, is_whole_run: bool = False) -> None:
        """is_whole_run: read from a journal for a page, and gone after it: it may take more memory."""
        self._budget = 8 if is_whole_run else 1
        self._kinds = Kinds()
        self._attempts: list[AttemptSpan] = []
        self._tracks: deque[tuple[AttemptSpan, dict[int, Track]]] = deque()
        self._front: list[FrontPoint] = []
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self._gauges: dict[tuple[str, str], deque[tuple[float, float]]] = {}
        self._metrics: dict[str, list[tuple[float, float]]] = {name: [] for name in METRICS}
        self._known_from_s: float | None = None
        self.last_s = 0.0
        self.trouble = ""
        """Why an event was passed over: a bug of ours that must not be felt by anybody."""

    def feed(self, event: ev.Event, now_s: float) -> None:
        """Learn from one event. Never raises."""
        try:
            self._feed(event, now_s)
        except Exception as error:
            self.trouble = f"{type(event).__name__}: {error!r}"

    def _feed(self, event: ev.Event, now_s: float) -> None:
        if self._known_from_s is None:
            self._known_from_s = now_s
        before_s = self.last_s
        self.last_s = max(self.last_s, now_s)
        match event:
            case ev.NodeReport():
                self._report(event, now_s)
            case ev.AttemptStarted():
                self._start(event, now_s)
            case ev.RankExited():
                self._exit(event, now_s)
            case ev.AttemptStopped():
                self._stop(event.attempt, now_s)
            case ev.RunContinued():
                # Whatever ran before was gone soon after the last word of it, and nobody saw it go.
                self._stop(self._attempts[-1].number if self._attempts else -1, before_s)
            case ev.GcHeld():
                track = self._track(event.attempt, event.global_rank)
                if track is not None:
                    track.overlays.add(self._kinds.index("gc"), now_s - event.duration_s, now_s)
            case ev.CheckpointSaved():
                self._saved(event, now_s)
            case ev.UncaughtExceptionReported():
                self._mark("raised", event.error.error, now_s, event.global_rank)
            case ev.TimeSkipped():
                self._mark("skipped", f"{event.gap_s:.0f} s in which nothing ran", now_s)
            case ev.NodeFindingsReported():
                self._gauge(event.gauges)
            case ev.HoldSet():
                self._mark("held" if event.is_held else "unheld", event.who, now_s)
            case ev.HandChangeEnded() if event.changes:
                self._mark("changed", "; ".join(event.changes), now_s)
            case ev.RestartAsked():
                self._mark("restart", event.who, now_s)

    def _mark(self, kind: str, text: str, at_s: float, rank: int = -1) -> None:
        self._marks.append(Mark(at_s=at_s, kind=kind, text=text[:200], rank=rank))

    def _gauge(self, gauges: list[ev.Gauge]) -> None:
        for gauge in gauges:
            key = (gauge.subject, gauge.name)
            if key not in self._gauges and len(self._gauges) < MAX_GAUGES:
                self._gauges[key] = deque(maxlen=GAUGE_POINTS * self._budget)
            if key in self._gauges:
                self._gauges[key].append((gauge.at_s, gauge.value))

    def _note_metrics(self, event: ev.NodeReport, now_s: float) -> None:
        """What training computes, as the median of the ranks of one report."""
        known = [report.metrics for report in event.ranks if report.metrics is not None]
        for name in METRICS:
            values = [value for metrics in known if (value := getattr(metrics, name)) is not None]
            if name == METRICS[-1] and not any(values):
                continue
            if values:
                self._metrics[name].append((now_s, median(values)))
                if len(self._metrics[name]) > GAUGE_POINTS * self._budget:
                    self._metrics[name] = thin_older(self._metrics[name])

    def gauges(self, from_s: float, to_s: float) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Per (part, name) what was read of it within a window: (when, value), where that is more than one point.

        What training computes comes first, as a part of that name.
        """
        every = {(TRAINING, name): points for name, points in self._metrics.items()} | self._gauges
        shown = {
            key: [(at_s, value) for at_s, value in points if from_s <= at_s <= to_s] for key, points in every.items()
        }
        return {key: points for key, points in shown.items() if len(points) > 1}

    def _sizes(self, ranks: int) -> tuple[int, int, int]:
        """Attempts, segments a rank, step points a rank."""

        def share(total: int, least: int, most: int) -> int:
            return max(least, min(most * self._budget, total * self._budget // max(ranks, 1)))

        return share(2048, 2, 8), share(32768, 24, 512), share(65536, 32, 512)

    def _start(self, event: ev.AttemptStarted, now_s: float) -> None:
        if self._attempts:
            self._stop(self._attempts[-1].number, now_s)
        resumed = event.resumed_from.step if event.resumed_from else None
        span = AttemptSpan(
            number=event.attempt, started_s=now_s, resumed_step=resumed, ranks=len({r.global_rank for r in event.ranks})
        )
        attempts, segments, points = self._sizes(span.ranks)
        for _, tracks in self._tracks:
            for track in tracks.values():
                track.shrink(max(16, segments // 4), max(16, points // 4))
        while len(self._tracks) >= attempts:
            self._tracks.popleft()
        self._attempts.append(span)
        del self._attempts[:-1000]
        fresh = {rank.global_rank: Track(now_s, segments, points) for rank in event.ranks}
        self._tracks.append((span, fresh))

    def _track(self, attempt: int, rank: int) -> Track | None:
        for span, tracks in reversed(self._tracks):
            if span.number == attempt:
                return tracks.get(rank)
        return None

    def _report(self, event: ev.NodeReport, now_s: float) -> None:
        if not self._tracks or self._tracks[-1][0].number != event.attempt:
            return
        span, tracks = self._tracks[-1]
        for report in event.ranks:
            track = tracks.get(report.global_rank)
            if track is None or track.exited_s is not None:
                continue
            track.report(report, now_s, self._kinds)
            if report.progress and span.first_progress_s is None:
                span.first_progress_s = min(report.progress_s or now_s, now_s)
        self._advance(span, event, now_s)
        self._note_metrics(event, now_s)

    def _advance(self, span: AttemptSpan, event: ev.NodeReport, now_s: float) -> None:
        furthest = max(event.ranks, key=lambda report: report.step, default=None)
        last = self._front[-1] if self._front else None
        if furthest is None or not furthest.step:
            return
        if last is not None and last.attempt == span.number and last.step >= furthest.step:
            return
        at_s = min(furthest.progress_s or now_s, now_s)
        self._front.append(FrontPoint(at_s, furthest.step, span.number))
        if len(self._front) > FRONT_POINTS * self._budget:
            self._front = thin_older(self._front)

    def _exit(self, event: ev.RankExited, now_s: float) -> None:
        track = self._track(event.attempt, event.global_rank)
        if track is None or track.exitcode is not None:
            return
        track.end(min(event.at_s or now_s, now_s), self._kinds)
        track.exitcode = event.exitcode
        if event.exitcode:
            self._mark("fell", f"exit {event.exitcode}", min(event.at_s or now_s, now_s), event.global_rank)

    def _stop(self, attempt: int, now_s: float) -> None:
        for span, tracks in self._tracks:
            if span.number == attempt and span.ended_s is None:
                span.ended_s = now_s
                for track in tracks.values():
                    track.end(now_s, self._kinds)

    def _saved(self, event: ev.CheckpointSaved, now_s: float) -> None:
        track = self._track(event.attempt, event.global_rank)
        if track is not None and track.exited_s is None and event.duration_s > 0:
            track.overlays.add(self._kinds.index("saving"), now_s - event.duration_s, now_s)
        last = self._marks[-1] if self._marks else None
        text = f"step {event.step}"
        if last is None or (last.kind, last.text) != ("saved", text):  # every rank of a sharded save says so
            self._mark("saved", text, now_s, event.global_rank)

    def began_s(self, attempt: int) -> float | None:
        """When an attempt's ranks were started; None where that is not known (any more)."""
        return next((span.started_s for span in self._attempts if span.number == attempt), None)

    def view(self, from_s: float = 0.0, to_s: float | None = None) -> View:
        """What is known of the time from from_s to to_s (None: the last event)."""
        to_s = self.last_s if to_s is None else to_s
        known_s = self._known_from_s if self._known_from_s is not None else to_s
        return View(
            from_s=from_s,
            to_s=to_s,
            known_from_s=known_s,
            attempts=[a for a in self._attempts if a.started_s < to_s and (a.ended_s is None or a.ended_s > from_s)],
            rows=self._rows(from_s, to_s),
            front=[point for point in self._front if from_s <= point.at_s <= to_s],
            marks=[mark for mark in self._marks if from_s <= mark.at_s <= to_s],
        )

    def _rows(self, from_s: float, to_s: float) -> list[RankRow]:
        found: dict[int, list[Track]] = {}
        for _, tracks in self._tracks:
            for rank, track in tracks.items():
                found.setdefault(rank, []).append(track)
        return [self._row(rank, tracks, from_s, to_s) for rank, tracks in sorted(found.items())]

    def _row(self, rank: int, tracks: list[Track], from_s: float, to_s: float) -> RankRow:
        phases: list[Segment] = []
        overlays: list[Segment] = []
        steps: list[tuple[float, int]] = []
        for track in tracks:
            phases += track.phases.segments(self._kinds, from_s, to_s)
            overlays += track.overlays.segments(self._kinds, from_s, to_s)
            steps += track.steps.points(from_s, to_s)
            if track.exited_s is None:
                end_s = min(to_s, max(self.last_s, track.phase_since_s))
                phases += _cut(track.going_on(end_s, is_phase=True), from_s, to_s)
                overlays += _cut(track.going_on(end_s, is_phase=False), from_s, to_s)
        last = tracks[-1]
        return RankRow(
            rank=rank,
            phases=phases,
            overlays=overlays,
            steps=steps,
            last_step=last.steps.last() if len(last.steps) else None,
            exitcode=last.exitcode,
            exited_s=last.exited_s,
        )


def thin_older(points: list[Point]) -> list[Point]:
    """Every second one of the older three quarters, and all of the others."""
    older = len(points) * 3 // 4
    return points[:older:2] + points[older:]


def _cut(segments: list[Segment], from_s: float, to_s: float) -> list[Segment]:
    return [
        Segment(kind, max(start, from_s), min(end, to_s))
        for kind, start, end in segments
        if end > from_s and start < to_s and end > start
    ]
