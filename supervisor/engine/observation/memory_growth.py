"""What ranks hold of a memory that they share, how fast it grows, and how fast the room below its limit shrinks.

Whatever the memory is: that of a host (engine/detectors/host_leak.py) or of a device (gpu_leak.py beside it).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from guardrun.supervisor.engine.observation.memory_trend import Slope, Trend, find_trend, sen_slope, to_come
from guardrun.supervisor.engine.observation.window_lows import LENGTHS, Lows

MIB = 1 << 20
"""What is kept is counted in these: a snapshot has hundreds of counts a rank."""
ROOM = "room"
"""What is left below the limit, negative, so that it rises as well. Other than what is used, it has no jump where
another limit comes to be the one with least room."""
THEIRS = 0.5
"""Share of what the room shrinks by that ranks' growth makes at least."""
GOES_ON = 0.5
"""Share of what a window usually adds."""
ENDS = 1.5
"""Times the room that what slows down must come to, at the pace at which it does: with less it may end in time."""


class Held(msgspec.Struct, kw_only=True):
    """What a rank holds, and has held since its first step."""

    pool: str = ""
    """The memory; ranks with the same share it, and its limit."""
    first_step: int
    first_s: float
    """When that was seen; when its counting began, once it has."""
    step: int = 0
    counts: dict[str, int] = {}
    """Newest, in MiB, by part."""
    spare: int = 0
    """MiB of the room that are used again and again for a while, and so can't be held by anything that stays; …"""
    doubt: int = 0
    """… and of those that may be."""
    lows: dict[str, list[Lows]] = {}
    """Per part that is not empty, of ROOM, and of what is kept beside: of each of LENGTHS, in MiB."""

    def add(
        self,
        counts: Mapping[str, int],
        room: int,
        now_s: float,
        shortest_s: float,
        beside: Mapping[str, int] | None = None,
    ) -> list[int]:
        """Take a count in; the places in LENGTHS of windows that it has closed.

        counts, room: bytes, by part and left. shortest_s: the shortest window. beside: what is no part of what is held,
        as it is.
        """
        self.counts = {name: count // MIB for name, count in counts.items()}
        closed: list[int] = []
        for name, count in {**self.counts, ROOM: -room // MIB, **(beside or {})}.items():
            if name not in self.lows:
                if not counts.get(name, 1):
                    continue
                self.lows[name] = [Lows() for _ in LENGTHS]
            rows = zip(LENGTHS, self.lows[name], strict=True)
            closed = [n for n, (length, row) in enumerate(rows) if row.add(int(now_s // (length * shortest_s)), count)]
        return closed

    def trends(self, place: int) -> dict[str, Trend]:
        """Of each part that grows on and on, in windows of LENGTHS[place]."""
        found = {name: find_trend(self.lows[name][place], 1) for name in self.counts if name in self.lows}
        return {name: trend for name, trend in found.items() if trend is not None}

    def goes_on(self, part: str, place: int, slope: float) -> bool:
        """Whether a part has grown in its last window, too, whose low is that of its beginning; slope: MiB in one."""
        return self.counts[part] - self.lows[part][place].closed[-1] >= GOES_ON * slope


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks of a pool that grow come to together, in windows of one length."""

    trends: dict[int, dict[str, Trend]]
    """Per rank, per part that grows."""
    window_s: float
    room: float
    """MiB that are left."""
    doubt: float
    """How many of these may be used for something else."""
    factor: float
    """How much of their growth is seen in the room: below 1 where they share it, or others give back."""

    def rate(self, rank: int) -> float:
        """MiB a window."""
        return sum(trend.slope.usual for trend in self.trends[rank].values())

    def fastest_part(self, rank: int) -> str:
        """Which of them grows most."""
        parts = self.trends[rank]
        return max(parts, key=lambda name: parts[name].slope.usual)

    @property
    def slope(self) -> Slope:
        """MiB a window, of all of them, as far as the room shrinks by it."""
        slopes = [trend.slope for trend in self._all()]
        return Slope(*(self.factor * sum(values) for values in zip(*slopes, strict=True)))

    @property
    def risen(self) -> float:
        """Likewise MiB, so far: by the beginning of the last window, and in it."""
        return self.factor * sum(trend.risen for trend in self._all()) + self.slope.usual

    @property
    def left_s(self) -> tuple[float, float, float]:
        """Until nothing is left: at the rate of late; at the highest, and at the lowest that it may be."""
        usual, least, most = self.slope
        whole_s = self.room * self.window_s
        return whole_s / usual, max(0.0, self.room - self.doubt) * self.window_s / most, whole_s / least

    def ends_by_itself(self) -> bool:
        """Whether it slows down so that the room may never be used up."""
        trends = self._all()
        apart = max(trend.windows for trend in trends) / 3
        coming = to_come(sum(trend.early for trend in trends), sum(trend.late for trend in trends), apart)
        return self.factor * coming < ENDS * self.room

    def _all(self) -> list[Trend]:
        return [trend for parts in self.trends.values() for trend in parts.values()]


def find_growth(held: Mapping[int, Held], rank: int, place: int, shortest_s: float) -> Growth | None:
    """Of all ranks of a rank's pool; None where it does not grow, or the room does not shrink by what they do."""
    one = held[rank]
    own = one.trends(place)
    if not own:
        return None
    trends = {rank: own}
    for other, its in held.items():
        if other != rank and its.pool == one.pool and (parts := its.trends(place)):
            trends[other] = parts
    rate = sum(trend.slope.usual for parts in trends.values() for trend in parts.values())
    windows = max(trend.windows for trend in own.values())
    room = one.lows[ROOM][place].closed[-windows:]
    shrinks = sen_slope(room).usual
    if shrinks <= 0 or rate < THEIRS * shrinks:
        return None
    # Of the lows, too: what is used for a while only is none of it. A rising window's low is that of its beginning.
    left = max(0.0, -room[-1] - shrinks - one.spare)
    window_s, factor = LENGTHS[place] * shortest_s, min(1.0, shrinks / rate)
    return Growth(trends=trends, window_s=window_s, room=left, doubt=one.doubt, factor=factor)
