"""One rank in one attempt, as its reports tell it (phases, what it suffered, steps), in bounded series."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from guardrun.supervisor.engine.model import events as ev

# Bounded series -----------------------------------------------------------------------------------------------------
# A bounded record of what came after what: stretches of time, each of a kind, and a line of points.
#
# Both keep what is recent as it was, and make what is older coarser when they are full: so a run of a month and one of
# a minute take the same few hundred bytes a rank.


KEPT_WHOLE = 0.25
"""Share of the newest entries that no thinning touches."""


class Segment(NamedTuple):
    """A stretch of time of one kind. Seconds are the engine's."""

    kind: str
    start_s: float
    end_s: float


class Kinds:
    """Names as small numbers; past 255 they are all `other`."""

    def __init__(self) -> None:
        self.names = ["other"]
        self._index = {"other": 0}

    def index(self, name: str) -> int:
        """Its number, given at the first call; 0 (`other`) for new names once 250 have one."""
        found = self._index.get(name)
        if found is None:
            if len(self.names) > 250:
                return 0
            found = self._index[name] = len(self.names)
            self.names.append(name)
        return found


class BoundedSegments:
    """Segments in their order. `is_filled`: one follows on another, and thinning leaves no hole."""

    __slots__ = ("_cap", "_ends", "_is_filled", "_kinds", "_starts")

    def __init__(self, cap: int, is_filled: bool) -> None:
        self._cap = cap
        self._is_filled = is_filled
        self._kinds = array("B")
        self._starts = array("d")
        self._ends = array("d")

    def add(self, kind: int, start_s: float, end_s: float) -> None:
        """Append a segment; one that goes on where the last of its kind ended makes that longer."""
        if end_s <= start_s:
            return
        if self._kinds and self._kinds[-1] == kind and start_s <= self._ends[-1] + 1e-6:
            self._ends[-1] = max(self._ends[-1], end_s)
            return
        self._kinds.append(kind)
        self._starts.append(start_s)
        self._ends.append(end_s)
        if len(self._kinds) > self._cap:
            self.thin(max(1, self._cap // 2))

    def thin(self, keep: int) -> None:
        """Keep about that many: the newest whole, older ones two by two as one (or only the longer of the two)."""
        while len(self._kinds) > keep:
            newest = max(1, int(keep * KEPT_WHOLE))
            older = len(self._kinds) - newest
            if older < 2:
                break
            kept = BoundedSegments(self._cap, self._is_filled)
            for n in range(0, older, 2):
                pair = range(n, min(n + 2, older))
                longest = max(pair, key=lambda i: self._ends[i] - self._starts[i])
                first, last = (pair[0], pair[-1]) if self._is_filled else (longest, longest)
                kept._append(self._kinds[longest], self._starts[first], self._ends[last])
            for n in range(older, len(self._kinds)):
                kept._append(self._kinds[n], self._starts[n], self._ends[n])
            self._kinds, self._starts, self._ends = kept._kinds, kept._starts, kept._ends

    def _append(self, kind: int, start_s: float, end_s: float) -> None:
        self._kinds.append(kind)
        self._starts.append(start_s)
        self._ends.append(end_s)

    def segments(self, kinds: Kinds, from_s: float, to_s: float) -> list[Segment]:
        """Those within a window, cut to it."""
        return [
            Segment(kinds.names[kind], max(start, from_s), min(end, to_s))
            for kind, start, end in zip(self._kinds, self._starts, self._ends, strict=True)
            if end > from_s and start < to_s
        ]


class Points:
    """(time, count) in their order."""

    __slots__ = ("_cap", "_counts", "_times")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._times = array("d")
        self._counts = array("q")

    def add(self, at_s: float, count: int) -> None:
        """Append a point; over the cap it is thinned to about half of that, the oldest first."""
        self._times.append(at_s)
        self._counts.append(count)
        if len(self._times) > self._cap:
            self.thin(self._cap // 2)

    def thin(self, keep: int) -> None:
        """Keep about that many: the newest whole, every second one of the older."""
        while len(self._times) > max(keep, 2):
            older = len(self._times) - max(1, int(keep * KEPT_WHOLE))
            self._times = self._times[:older:2] + self._times[older:]
            self._counts = self._counts[:older:2] + self._counts[older:]

    def last(self) -> int:
        """The newest count; 0 where there is none."""
        return self._counts[-1] if self._counts else 0

    def points(self, from_s: float, to_s: float) -> list[tuple[float, int]]:
        """Those within a window."""
        return [(t, n) for t, n in zip(self._times, self._counts, strict=True) if from_s <= t <= to_s]

    def __len__(self) -> int:
        return len(self._times)


# Rank track ---------------------------------------------------------------------------------------------------------


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
        self.phases = BoundedSegments(segments, is_filled=True)
        self.overlays = BoundedSegments(segments, is_filled=False)
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
