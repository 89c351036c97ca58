"""What the judges of the node share: conditions that last, counters that grow, happenings within a time. Pure.

- A condition holds once it was so for a while and in more than one readout, and is over once it was not for a while.
  What is unknown changes neither. A gap in what is told (a silent sensor) proves nothing: waiting begins anew.
- A counter that goes backwards was reset, one that is no finite number is unknown: neither is growth.
- Times that go backwards (readouts out of order) are passed over.

Whatever is not heard of for FORGET_S is forgotten: links, groups and mounts come and go by the thousand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Standing, finding_id, host_finding
from guardrun.supervisor.health.base.readings import Readout, Value

FORGET_S = 3600.0
MAX_KEYS = 4096
MAX_MOMENTS = 256
ABSURD = 1e18
"""Nothing is so much: a register that reads all ones, an underflow."""
GAP_S = 300.0
"""Longer than any sensor's period, stretched ones included."""


def values_of(readout: Readout) -> dict[str, dict[str, Value]]:
    """Subject → name → value, of what is known."""
    found: dict[str, dict[str, Value]] = {}
    for sample in readout.samples:
        if sample.value is not None:
            found.setdefault(sample.subject, {})[sample.name] = sample.value
    return found


def number(value: Value | None) -> float | None:
    """A quantity, where it is one: not negative, and not absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= ABSURD else None


def clip(text: object, limit: int = 80) -> str:
    """A text from outside as a sentence can bear it."""
    plain = "".join(character if character.isprintable() else "?" for character in str(text))
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


class _State:
    __slots__ = ("good_s", "holds", "last_s", "readouts", "since_s")

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.good_s: float | None = None
        self.last_s = -math.inf
        self.readouts = 0
        self.holds = False


class Lasting:
    """Says of conditions whether they have lasted."""

    def __init__(self, begins_s: float, ends_s: float, readouts: int = 2) -> None:
        """begins_s: for how long, and in how many readouts, it must be so; ends_s: for how long not."""
        self._begins_s, self._ends_s, self._readouts = begins_s, ends_s, readouts
        self._states: dict[str, _State] = {}

    def update(self, key: str, is_so: bool | None, at_s: float) -> bool:
        """Whether it holds, as of a readout at that time; None: unknown."""
        state = self._states.get(key)
        if state is None:
            if not is_so or len(self._states) >= MAX_KEYS:
                return False
            state = self._states[key] = _State()
        if is_so is None or at_s < state.last_s:
            return state.holds
        if at_s - state.last_s > GAP_S and not state.holds:
            state.since_s, state.readouts = None, 0
        state.last_s = at_s
        if is_so:
            self._bad(state, at_s)
        else:
            self._good(key, state, at_s)
        return state.holds

    def _bad(self, state: _State, at_s: float) -> None:
        state.good_s = None
        if state.since_s is None:
            state.since_s = at_s
        state.readouts += 1
        if at_s - state.since_s >= self._begins_s and state.readouts >= self._readouts:
            state.holds = True

    def _good(self, key: str, state: _State, at_s: float) -> None:
        state.good_s = at_s if state.good_s is None else state.good_s
        if not state.holds or at_s - state.good_s >= self._ends_s:
            del self._states[key]
            state.holds = False

    def since_s(self, key: str) -> float:
        """When it was first so, of what holds; raises KeyError otherwise."""
        since_s = self._states[key].since_s
        return since_s if since_s is not None else self._states[key].last_s

    def forget(self, now_s: float) -> list[str]:
        """Drop what nobody has told of for long; answers the keys of those that held."""
        old = [key for key, state in self._states.items() if now_s - state.last_s > FORGET_S]
        return [key for key in old if self._states.pop(key).holds]


class Growth(NamedTuple):
    """How much a counter grew, and in how many seconds."""

    by: float
    within_s: float

    @property
    def rate(self) -> float:
        """Per second."""
        return self.by / self.within_s


class LastCounts:
    """Counters as they were last told."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def grown(self, key: str, value: Value | None, at_s: float) -> Growth | None:
        """Since the last readout; None where that can't be told: the first one, a reset, no number, no time between."""
        now = number(value)
        if now is None:
            return None
        before = self._last.get(key)
        if before is None and len(self._last) >= MAX_KEYS:
            return None
        if before is not None and at_s < before[1]:
            return None
        self._last[key] = (now, at_s)
        if before is None or now < before[0] or at_s <= before[1]:
            return None
        return Growth(now - before[0], at_s - before[1])

    def forget(self, now_s: float) -> None:
        """Drop what nobody has told of for long."""
        for key in [key for key, (_, at_s) in self._last.items() if now_s - at_s > FORGET_S]:
            del self._last[key]


class Moments:
    """When things happened, by key; the last MAX_MOMENTS of each."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._moments: dict[str, deque[float]] = {}

    def add(self, key: str, at_s: float, now_s: float, times: int = 1) -> int:
        """It happened; answers how often it did within the time. A moment that is yet to come counts as now."""
        if key not in self._moments and len(self._moments) >= MAX_KEYS:
            return 0
        moments = self._moments.setdefault(key, deque(maxlen=MAX_MOMENTS))
        moments.extend([min(at_s, now_s)] * min(times, MAX_MOMENTS))
        return self.count(key, now_s)

    def count(self, key: str, now_s: float) -> int:
        """How often it happened within the time up to now_s; what is older is forgotten."""
        moments = self._moments.get(key)
        if moments is None:
            return 0
        while moments and now_s - moments[0] > self._within_s:
            moments.popleft()
        if not moments:
            del self._moments[key]
            return 0
        return len(moments)

    def first_s(self, key: str) -> float | None:
        """The earliest that is remembered."""
        moments = self._moments.get(key)
        return moments[0] if moments else None

    def spread_s(self, key: str) -> float:
        """From the first to the last that is remembered."""
        moments = self._moments.get(key)
        return moments[-1] - moments[0] if moments else 0.0

    def keys(self) -> list[str]:
        """Of all that is remembered; a key whose moments are too old stays until `count` is asked for it."""
        return list(self._moments)


# Lasting condition --------------------------------------------------------------------------------------------------
# One thing that can be wrong with a part of the host: it must last, and then it is found until it is over.


Said = tuple[str, dict[str, Any]]
"""A summary and its evidence."""


class Condition:
    """`CAUSE/SUBJECT/WHAT`, for all subjects."""

    def __init__(
        self, cause: str, what: str, standing: Standing, lasting: Lasting, *, key: str = "", advice: str = ""
    ) -> None:
        self._cause, self._what, self._key, self._advice = cause, what, key, advice
        self._standing, self._lasting = standing, lasting

    def update(
        self, subject: str, is_so: bool | None, at_s: float, now_s: float, describe: Callable[[], Said]
    ) -> list[Finding]:
        """What a readout at that time changes; None: it could not be told. describe: asked only if it is reported."""
        name = finding_id(self._cause, subject, self._what)
        if not self._lasting.update(name, is_so, at_s):
            return self._standing.end(name, now_s)
        if not is_so:
            return []
        summary, evidence = describe()
        finding = host_finding(
            self._cause,
            subject,
            self._what,
            key=self._key,
            since_s=self._lasting.since_s(name),
            told_s=now_s,
            summary=summary,
            evidence=evidence,
            advice=self._advice,
        )
        return self._standing.hold(finding)

    def forget(self, now_s: float) -> list[Finding]:
        """What nobody has told of for long is over."""
        return [over for name in self._lasting.forget(now_s) for over in self._standing.end(name, now_s)]


# Counter windows ----------------------------------------------------------------------------------------------------
# How a counter grows over a window of time.


class WindowedCounter:
    """A counter of a driver's, which begins anew when the driver is loaded again: one that falls starts over."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, float]] = deque()

    def add(self, value: float, at_s: float) -> float:
        """How much it has grown since the last value; 0 for the first one, and for one that begins anew."""
        last = self._points[-1][1] if self._points else value
        if value < last:
            self._points.clear()
            last = value
        self._points.append((at_s, value))
        while len(self._points) > 2 and self._points[1][0] <= at_s - self._window_s:
            self._points.popleft()
        return value - last

    def growth(self) -> float:
        """Over the window, or since it is known where that is shorter."""
        return self._points[-1][1] - self._points[0][1] if self._points else 0.0

    def spent_s(self) -> float:
        """What growth is over."""
        return self._points[-1][0] - self._points[0][0] if self._points else 0.0

    def rate(self) -> float:
        """A second; 0 where it is known only once."""
        return self.growth() / self.spent_s() if self.spent_s() else 0.0
