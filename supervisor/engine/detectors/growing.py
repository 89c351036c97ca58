"""What detectors of growth without end have in common: which growth is told, of whom, and what is known of it.

Much grows that ends by itself: caches, pools, the longest sequence so far. So what is compared are the lowest counts of
windows, by part. All of this must hold:

- a part rises on and on (observation/memory_trend.py), beyond what it was in any window before;
- the room that is left below the limit shrinks as well, half of it or more by what these ranks hold: memory that
  others take, or that is counted twice, is none of theirs;
- they have taken SHARE of the room that there was: a leak has so much time left that one can act, and most of what
  fills up and ends has ended;
- at the rate of late it is used up within HORIZON_S, and the rise does not slow down so that it never is.

What is counted begins after a rank's first step, or WARM_UP_S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model.events import Settings
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import RunsOut
from guardrun.supervisor.engine.observation.memory_growth import MIB, Growth, Held, find_growth
from guardrun.supervisor.engine.observation.window_lows import LENGTHS

SHARE = 0.4
"""Of the room that there was when the growth began."""
RISE_MIB = 64
RISE_OF_LIMIT = 0.01
"""A rise is so many MiB, and such a share of the limit, at least: noise may be most of a room that is nearly gone."""
ALIKE = 0.5
"""Share of the fastest rank's rate at which another grows at least, to be reported with it."""
HORIZON_S = 6 * 3600.0
WARM_UP_S = 3600.0
"""Of ranks whose steps are not seen, or not yet: large models are loaded, and compiled, for half an hour."""
SLACK = 0.1
"""Share of the rise by which a part may grow in LASTS windows that is said to have stopped."""
MOST_REPORTED = 3
"""Incidents in a run, of a cause."""
MAX_CULPRITS = 64
CONFIDENCE = 0.8


class Reported(msgspec.Struct, kw_only=True):
    """An incident that is not over."""

    key: str
    ranks: list[int]
    place: int
    """In LENGTHS, of the windows that showed it."""
    part: str
    slack: int
    """MiB."""
    judged: dict[int, int] = {}
    """Ranks → the window of their last outlook."""
    left: dict[int, tuple[float, float]] = {}
    """Ranks that grow right now → when nothing is left: the soonest, and at the rate of late."""


class Growing(msgspec.Struct, kw_only=True):
    """What ranks hold, and of whom was reported that it grows: such a detector's memory."""

    attempt: int = -1
    held: dict[int, Held] = {}
    reported: list[Reported] = []
    """Of this attempt."""
    known: set[int] = set()
    """Ranks that an incident of this run has named."""
    count: int = 0
    """Incidents of this run."""
    count_before: int = 0
    """Those that MOST_REPORTED leaves out."""

    def begin(self, attempt: AttemptView, settings: Settings) -> bool:
        """Forget what ranks of the attempt before have held; whether there was one."""
        if self.attempt == attempt.number:
            return False
        self.attempt, self.held, self.reported = attempt.number, {}, []
        if settings.saves_before_oom:  # a leak that comes back is to be saved before again
            self.known, self.count_before = set(), self.count
        return True

    def holder(self, rank: int, pool: str, step: int, attempt: AttemptView, now_s: float) -> Held | None:
        """To whom what a rank holds is added; None before its first step, which is not counted."""
        held = self.held.setdefault(rank, Held(pool=pool, first_step=step, first_s=now_s))
        if not held.lows:
            if step <= held.first_step and now_s - attempt.started_s < WARM_UP_S:
                return None
            held.first_step, held.first_s = step, now_s
        held.pool, held.step = pool, step
        return held

    def find(self, rank: int, place: int, limit: int, shortest_s: float) -> Growth | None:
        """Growth of a rank's pool that is to be told, in windows of LENGTHS[place]; limit: bytes."""
        if rank in self.known or self.are_enough or not limit:
            return None
        growth = find_growth(self.held, rank, place, shortest_s)
        if growth is None or growth.left_s[0] > HORIZON_S:
            return None
        least = max(RISE_MIB, RISE_OF_LIMIT * limit / MIB)
        if growth.risen < max(least, SHARE * (growth.room + growth.risen)):
            return None
        # That it slows down is seen in some windows, and lost in the noise of others.
        others = (find_growth(self.held, rank, at, shortest_s) for at in range(max(0, place - 1), len(LENGTHS)))
        if any(seen.ends_by_itself() for seen in (growth, *others) if seen is not None):
            return None
        part = growth.fastest_part(rank)
        return growth if self.held[rank].goes_on(part, place, growth.trends[rank][part].slope.usual) else None

    @property
    def are_enough(self) -> bool:
        """No more incidents are opened."""
        return self.count - self.count_before >= MOST_REPORTED

    def outlook(self, rank: int, settings: Settings, now_s: float) -> list[RunsOut]:
        """When nothing is left by what was reported of a rank, once in each window of those that showed it."""
        if not settings.saves_before_oom:
            return []
        found: list[RunsOut] = []
        for reported in self.reported:
            held = self.held[rank]
            if rank not in reported.ranks[:MAX_CULPRITS] or reported.part not in held.counts:
                continue
            window = held.lows[reported.part][reported.place].index
            if reported.judged.get(rank) == window:
                continue
            reported.judged[rank] = window
            growth = find_growth(self.held, rank, reported.place, settings.memory_window_s)
            reported.left.pop(rank, None)
            if growth is not None and not growth.ends_by_itself():
                usual_s, soonest_s, _ = growth.left_s
                reported.left[rank] = (now_s + soonest_s, now_s + usual_s)
            first, second = min(reported.left.values(), default=(None, None))
            found.append(RunsOut(key=reported.key, soonest_s=first, usual_s=second))
        return found

    def alike(self, rates: Mapping[int, float]) -> list[int]:
        """Of ranks that grow, those that are to be named together; rates: MiB a window."""
        fastest = max(rates.values())
        return sorted(rank for rank, rate in rates.items() if rank not in self.known and rate >= ALIKE * fastest)

    def book(self, cause: str, ranks: Sequence[int], place: int, part: str, risen: int) -> str:
        """These are told of now, for what has risen by so many MiB; the incident's key."""
        self.known.update(ranks)
        self.count += 1
        key = f"{cause}/{self.count}"
        slack = int(SLACK * risen)
        self.reported.append(Reported(key=key, ranks=list(ranks), place=place, part=part, slack=slack))
        return key

    def describe(self, rank: int, part: str, growth: Growth, rate: float, now_s: float) -> dict[str, Any]:
        """Of the rank that grows fastest, as evidence: how fast, since when, and how long it can; rate: MiB a window.

        `onset_s` is in the engine's time.
        """
        held, trend = self.held[rank], growth.trends[rank][part]
        left_s, soonest_s, latest_s = growth.left_s
        per_s = MIB * rate / growth.window_s
        steps_s = (held.step - held.first_step) / max(1.0, now_s - held.first_s)
        # A row may begin long before the growth: at the rate of late it has taken so long, and the last window.
        grows_s = growth.window_s * min(trend.windows, trend.risen / trend.slope.usual)
        onset_s = max(0.0, now_s - grows_s - growth.window_s)
        return {
            "window_s": round(trend.windows * growth.window_s, 1),
            "per_hour_bytes": round(3600 * per_s),
            "per_step_bytes": round(per_s / steps_s) if steps_s > 0 else None,
            "onset_s": onset_s,
            "onset_step": max(0, held.step - round(steps_s * (now_s - onset_s))) if steps_s > 0 else None,
            "left_s": round(left_s),
            "left_range_s": [round(soonest_s), round(latest_s)],
        }

    def ended(self, rank: int, place: int) -> list[tuple[str, int]]:
        """Incidents none of whose ranks has grown for as long as it takes to find one that does: key, and MiB held.

        By the windows of this rank, the last of them, of LENGTHS[place].
        """
        found: list[tuple[str, int]] = []
        for reported in list(self.reported):
            lows = self.held[rank].lows.get(reported.part)
            if reported.place != place or rank not in reported.ranks or lows is None:
                continue
            if not lows[place].has_stopped(reported.slack):
                continue
            reported.ranks.remove(rank)
            reported.left.pop(rank, None)
            if not reported.ranks:
                self.reported.remove(reported)
                found.append((reported.key, lows[place].closed[-1]))
        return found


def span_words(lasted_s: float) -> str:
    """`40 s`, `12 min`."""
    return f"{lasted_s:.0f} s" if lasted_s < 100 else f"{lasted_s / 60:.0f} min"


def range_words(soonest_s: float, latest_s: float) -> str:
    """`40 to 70 min`, `about 3 h`."""
    unit_s, unit = (1.0, "s") if latest_s < 100 else (60.0, "min") if latest_s < 6000 else (3600.0, "h")
    digits = 1 if unit == "h" else 0
    soonest, latest = (f"{round(value / unit_s, digits):g}" for value in (soonest_s, latest_s))
    return f"about {latest} {unit}" if soonest == latest else f"{soonest} to {latest} {unit}"
