"""One rank in one attempt, as its reports tell it: phases, what it suffered, steps."""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.report.timeline.bounded_series import Kinds, Points, Segment, Strip

SILENT_FLOOR_S = 3.0
SILENT_FACTOR = 4.0
"""Without progress for this many times what is usual between two advances, a rank is drawn as silent."""
_SLOW = frozenset({"start", "init", "load", "compile"})
"""Phases in which long silences that end by themselves are how things are."""


class Track:
    """One rank in one attempt. Feed it reports; it ends with the rank's process."""

    __slots__ = (
        "_open",
        "exitcode",
        "exited_s",
        "gap_s",
        "overlays",
        "phase",
        "phase_since_s",
        "phases",
        "progress",
        "progress_s",
        "steps",
    )

    def __init__(self, started_s: float, segments: int, points: int) -> None:
        self.phases = Strip(segments, is_filled=True)
        self.overlays = Strip(segments, is_filled=False)
        self.steps = Points(points)
        self.phase = "start"
        self.phase_since_s = started_s
        self._open: dict[str, float] = {}
        self.progress = 0
        self.progress_s = started_s
        self.gap_s = 0.0
        self.exitcode: int | None = None
        self.exited_s: float | None = None

    def report(self, report: ev.RankReport, now_s: float, kinds: Kinds) -> None:
        """Take in what changed: phase, GC, a save, a stop, progress, step. now_s: the engine's seconds."""
        was_slow = self.phase in _SLOW
        if report.phase and report.phase != self.phase:
            self.phases.add(kinds.index(self.phase), self.phase_since_s, now_s)
            self.phase, self.phase_since_s = report.phase, now_s
        self._overlay("gc", report.gc_since_s, now_s, kinds)
        self._overlay("saving", report.in_save_since_s, now_s, kinds)
        self._overlay("stopped", now_s if report.state in ("T", "t") else 0.0, now_s, kinds)
        at_s = min(report.progress_s or now_s, now_s)
        if report.progress > self.progress:
            self._advance(at_s, was_slow, kinds)
            self.progress = report.progress
        if report.step != self.steps.last():
            self.steps.add(at_s, report.step)

    def _advance(self, at_s: float, was_slow: bool, kinds: Kinds) -> None:
        gap_s = at_s - self.progress_s
        if self.progress and gap_s >= self.silent_after_s():
            if not was_slow:
                self.overlays.add(kinds.index("silent"), self.progress_s, at_s)
        elif self.progress:
            self.gap_s = gap_s if not self.gap_s else 0.9 * self.gap_s + 0.1 * gap_s
        self.progress_s = max(at_s, self.progress_s)

    def silent_after_s(self) -> float:
        """How long without progress until it is drawn as silent; grows with the rank's usual gap."""
        return max(SILENT_FLOOR_S, SILENT_FACTOR * self.gap_s)

    def _overlay(self, kind: str, since_s: float, now_s: float, kinds: Kinds) -> None:
        """since_s: 0 where it is over, or never was."""
        began_s = self._open.get(kind)
        if since_s and began_s is None:
            self._open[kind] = since_s
        elif not since_s and began_s is not None:
            self.overlays.add(kinds.index(kind), began_s, now_s)
            del self._open[kind]

    def end(self, at_s: float, kinds: Kinds) -> None:
        """The rank's process is gone: what was going on has ended."""
        if self.exited_s is not None:
            return
        self.exited_s = at_s
        for segment in self.going_on(at_s, is_phase=False):
            self.overlays.add(kinds.index(segment.kind), segment.start_s, segment.end_s)
        self.phases.add(kinds.index(self.phase), self.phase_since_s, at_s)
        self._open.clear()

    def going_on(self, now_s: float, is_phase: bool) -> list[Segment]:
        """What has begun and not ended."""
        if is_phase:
            return [Segment(self.phase, self.phase_since_s, now_s)]
        found = [Segment(kind, since_s, now_s) for kind, since_s in self._open.items()]
        if self.progress and now_s - self.progress_s >= self.silent_after_s():
            found.insert(0, Segment("silent", self.progress_s, now_s))
        return found

    def shrink(self, segments: int, points: int) -> None:
        """Thin to about so many segments and points each, the oldest first."""
        self.phases.thin(segments)
        self.overlays.thin(segments)
        self.steps.thin(points)
