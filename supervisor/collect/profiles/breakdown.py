"""What a rank's steps went to, from the events of its trace. Pure.

Where a device was recorded, what counts is what ran there: at each moment it computes (matmul before all else), or it
communicates, or it moves memory, or it is idle. Communication under way while something is computed is hidden. Where
there was none, it is the host's operators likewise, each without what it called itself; what was under way in between
(Python, data, waiting) is idle.

Kernels of a collective are there while they wait for other ranks: communication includes that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from guardrun.hooks.wire.examinations import STEP_MARK
from guardrun.supervisor.collect.profiles.intervals import Interval, clip, subtract, total, unite
from guardrun.supervisor.collect.profiles.kinds import (
    COMMUNICATION,
    KINDS,
    MATMUL,
    OTHER,
    kernel_kind,
    operator_kind,
)
from guardrun.supervisor.rundir.profiles import Breakdown, Operator

IDLE = "idle"
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "privateuse1_kernel", "xpu_kernel"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "xpu_runtime", "hip_runtime", "privateuse1_runtime"}
ON_HOST = {"cpu_op", "user_annotation"}
TOP = 30
MAX_NAME_CHARS = 160
MAX_NAMES = 50_000
"""Different ones: a script may name as many as it likes; more are added up as one."""
MAX_US = 1e18
"""Kineto's microseconds since the machine's start, or 1970."""
REST = "(others)"


class _Lane:
    """One thread, or one device: its events, as (start, end, name)."""

    def __init__(self) -> None:
        self.events: list[tuple[float, float, int]] = []
        self.correlations: list[int] = []
        """Of a device's."""


class Reading:
    """Takes events in, one by one; then answers."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, bool], int] = {}
        self._kinds: list[str] = []
        self._shown: list[str] = []
        self._devices: dict[str, _Lane] = defaultdict(_Lane)
        self._threads: dict[str, _Lane] = defaultdict(_Lane)
        self._operators: dict[int, int] = {}
        """By External id, the name of the operator that has it."""
        self._launched: list[tuple[int, int]] = []
        """A kernel's name, and its External id."""
        self._launches: dict[int, float] = {}
        """By correlation, when the host launched it."""
        self._marks: list[float] = []
        self.count = 0

    def add(self, event: dict[str, Any]) -> None:
        """One event of a trace, whatever it is."""
        if event.get("ph") != "X":
            return
        category, name, arguments = event.get("cat"), event.get("name"), event.get("args")
        start, lasts = _number(event.get("ts")), _number(event.get("dur"))
        if not isinstance(category, str) or not isinstance(name, str) or start is None or lasts is None:
            return
        arguments = arguments if isinstance(arguments, dict) else {}
        external = arguments.get("External id", arguments.get("external id"))
        self.count += 1
        if category.lower() in ON_DEVICE:
            place = self._name(name, is_kernel=True)
            lane = self._devices[_key(arguments.get("device", event.get("pid")))]
            lane.events.append((start, start + lasts, place))
            correlation = arguments.get("correlation")
            lane.correlations.append(correlation if isinstance(correlation, int) else -1)
            if isinstance(external, int):
                self._launched.append((place, external))
        elif category.lower() in LAUNCHES:
            if isinstance(correlation := arguments.get("correlation"), int):
                self._launches[correlation] = start
        elif category.lower() in ON_HOST:
            if name.startswith(STEP_MARK):
                self._marks.append(start)
                return
            place = self._name(name, is_kernel=False, is_annotation=category.lower() == "user_annotation")
            self._threads[_key(event.get("tid"))].events.append((start, start + lasts, place))
            if isinstance(external, int) and self._kinds[place]:
                self._operators[external] = place

    def _name(self, name: str, *, is_kernel: bool, is_annotation: bool = False) -> int:
        if len(self._names) >= MAX_NAMES and (name, is_kernel) not in self._names:
            name, is_annotation = REST, False
        place = self._names.get((name, is_kernel))
        if place is None:
            place = self._names[name, is_kernel] = len(self._kinds)
            self._kinds.append(kernel_kind(name) if is_kernel else operator_kind(name, is_annotation))
            self._shown.append(name[:MAX_NAME_CHARS])
        return place

    # The answer ----------------------------------------------------------------------------------------------------

    def breakdown(self, device_name: str = "", trouble: str = "") -> Breakdown | None:
        """What it comes to; None where nothing ran. trouble: why not all events were taken in."""
        lane = None
        stretches: dict[int, list[Interval]] = defaultdict(list)
        if self._devices:
            # A rank of several devices: the one that it uses most.
            lane = max(self._devices.values(), key=lambda one: sum(end - start for start, end, _ in one.events))
            for start, end, place in lane.events:
                stretches[place].append((start, end))
        else:
            for thread in self._threads.values():
                for start, end, place in own_times(thread.events):
                    if self._kinds[place]:
                        stretches[place].append((start, end))
        window = self._window(lane, stretches)
        if window is None:
            return None
        began = lane.events if lane else [one for thread in self._threads.values() for one in thread.events]
        calls = Counter(place for start, _, place in began if window[0] <= start < window[1])
        by_kind = {
            kind: clip(
                unite(one for place, found in stretches.items() if self._kinds[place] == kind for one in found), *window
            )
            for kind in KINDS
        }
        parts: dict[str, float] = {}
        covered: list[Interval] = []
        for kind in KINDS:
            parts[kind] = total(subtract(by_kind[kind], covered)) / 1e6
            covered = unite([*covered, *by_kind[kind]])
        window_s = (window[1] - window[0]) / 1e6
        parts[IDLE] = max(0.0, window_s - total(covered) / 1e6)
        computed = unite([*by_kind[MATMUL], *by_kind[OTHER]])
        communication_s = total(by_kind[COMMUNICATION]) / 1e6
        operators = self._top(stretches, calls, window)
        return Breakdown(
            where="device" if self._devices else "host",
            device=device_name,
            window_s=window_s,
            parts=parts,
            communication_s=communication_s,
            hidden_s=max(0.0, communication_s - total(subtract(by_kind[COMMUNICATION], computed)) / 1e6),
            operators=operators[:TOP],
            operators_left_out=max(0, len(operators) - TOP),
            events=self.count,
            trouble=trouble,
        )

    def _window(self, lane: _Lane | None, stretches: dict[int, list[Interval]]) -> Interval | None:
        """From the first mark to the last; on a device, what was launched in between."""
        between = (min(self._marks), max(self._marks)) if len(self._marks) > 1 else (-math.inf, math.inf)
        found = [one for intervals in stretches.values() for one in intervals]
        if lane is not None and len(self._marks) > 1:
            launched = [
                (start, end)
                for (start, end, _), correlation in zip(lane.events, lane.correlations, strict=True)
                if between[0] <= self._launches.get(correlation, -math.inf) < between[1]
            ]
            found, between = (launched, (-math.inf, math.inf)) if launched else (found, between)
        if not found:
            return None
        first, last = min(start for start, _ in found), max(end for _, end in found)
        if lane is None and len(self._marks) > 1:
            first, last = between
        first, last = max(first, between[0]), min(last, between[1])
        return (first, last) if first < last else None

    def _top(self, stretches: dict[int, list[Interval]], calls: Counter[int], window: Interval) -> list[Operator]:
        launchers: dict[int, Counter[int]] = defaultdict(Counter)
        for place, external in self._launched:
            if external in self._operators:
                launchers[place][self._operators[external]] += 1
        found = []
        for place, intervals in stretches.items():
            total_s = total(unite(clip(intervals, *window))) / 1e6
            under = launchers[place].most_common(1) if place in launchers else []
            found.append(
                Operator(
                    name=self._shown[place],
                    kind=self._kinds[place],
                    calls=calls[place],
                    total_s=total_s,
                    under=self._shown[under[0][0]] if under else "",
                )
            )
        return sorted(found, key=lambda one: (-one.total_s, one.name))


def own_times(events: Iterable[tuple[float, float, int]]) -> list[tuple[float, float, int]]:
    """Of (start, end, name) on one thread, each without what lies within it: (start, end, name), in order.

    What only overlaps ends with what it began in.
    """
    own: list[tuple[float, float, int]] = []
    stack: list[tuple[float, int]] = []
    """End and name of those under way, the innermost last."""
    at = -math.inf

    def go_to(moment: float) -> None:
        nonlocal at
        while stack and stack[-1][0] <= moment:
            end, name = stack.pop()
            if end > at:
                own.append((at, end, name))
                at = end
        if stack and moment > at:
            own.append((at, moment, stack[-1][1]))
        at = max(at, moment)

    for start, end, name in sorted(events, key=lambda one: (one[0], -one[1])):
        go_to(start)
        stack.append((min(end, stack[-1][0]) if stack else end, name))
    go_to(math.inf)
    return own


def _number(value: object) -> float | None:
    """A time of a trace; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_US:
        return None
    return float(value)


def _key(value: object) -> str:
    return str(value)[:80]
