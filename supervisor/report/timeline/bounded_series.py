"""A bounded record of what came after what: stretches of time, each of a kind, and a line of points.

Both keep what is recent as it was, and make what is older coarser when they are full: so a run of a month and one of
a minute take the same few hundred bytes a rank.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

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


class Strip:
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
            kept = Strip(self._cap, self._is_filled)
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
