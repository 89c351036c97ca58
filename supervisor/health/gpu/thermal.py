"""A device that is held down: too hot, or short of power. Pure.

Power capping, idling and clocks that somebody has set are no throttling. A device throttles once half of the readings
of WINDOW_S show it, whether without a break or on and off, and no longer does when none of END_S shows it. Whether
training feels it is not known here.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any, NamedTuple

from guardrun.supervisor.health.base.findings import Finding, Held
from guardrun.supervisor.health.base.readings import Readout, Value
from guardrun.supervisor.health.gpu.gpu_inventory import SENSOR, GpuBook, number

CAUSE = "throttle"
WINDOW_S = 20.0
END_S = 20.0
MIN_READINGS = 4
SHARE = 0.5
KEPT_S = 600.0
MAX_POINTS = 300
"""For the report: ten minutes at the usual period."""

KINDS = {
    "hw_thermal": "its hardware slows it down because it is too hot",
    "sw_thermal": "its driver slows it down because it is too hot",
    "power_brake": "the system's power supply makes it brake",
    "hw_slowdown": "its hardware slows it down, without saying why",
}
"""Clock event reasons that are throttling (NVML API reference, "NvmlClocksEventReasons"), the more telling first;
hw_slowdown is set along with hw_thermal and power_brake, and alone where power was drawn too fast."""

ADVICE = {
    "hw_thermal": "Check the node's cooling: fans, filters, inlet temperature, coolant.",
    "sw_thermal": "Check the node's cooling: fans, filters, inlet temperature, coolant.",
    "power_brake": "Check the node's power supplies and the rack's power budget.",
    "hw_slowdown": "Check the device's power cables and the node's power supplies.",
}
LIMITS = (
    "temperature_slowdown_c",
    "temperature_shutdown_c",
    "temperature_max_c",
    "memory_temperature_max_c",
    "sm_clock_max_hz",
    "power_limit_w",
)


class Point(NamedTuple):
    """One reading of one device; None: not known."""

    at_s: float
    kinds: frozenset[str]
    sm_clock_hz: float | None
    temperature_c: float | None
    memory_temperature_c: float | None
    power_w: float | None


class ThrottleJudge:
    """`throttle`, a finding a device."""

    sensors = frozenset({SENSOR})

    def __init__(self) -> None:
        self._book = GpuBook()
        self._held = Held()
        self._points: dict[str, deque[Point]] = defaultdict(lambda: deque(maxlen=MAX_POINTS))
        self._limits: dict[str, dict[str, float]] = defaultdict(dict)

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        """Judges each device's clock limits over WINDOW_S; a device that is lost no longer throttles."""
        told: list[Finding] = []
        for subject, values in self._book.update(readout).items():
            self._limits[subject].update({name: v for name in LIMITS if (v := number(values, name)) is not None})
            if values.get("is_lost"):
                self._points.pop(subject, None)
                told += self._held.end(f"{CAUSE}/{subject}", now_s)
            elif (point := _point(readout.at_s, values)) is not None:
                told += self._judge(subject, point, now_s)
        return told

    def _judge(self, subject: str, point: Point, now_s: float) -> list[Finding]:
        points = self._points[subject]
        points.append(point)
        while points[0].at_s < point.at_s - KEPT_S:
            points.popleft()
        finding_id = f"{CAUSE}/{subject}"
        held = self._held.holds(finding_id)
        since_s = held.since_s if held is not None else self._throttling_since(points)
        if since_s is None:
            return []
        if held is not None and not _active_since(points, point.at_s - END_S):
            lasted_s = points[-1].at_s - since_s
            return self._held.end(
                finding_id, now_s, f"{self._book.label(subject)} throttled for {lasted_s:.0f} s and does no longer."
            )
        return self._report_throttling(finding_id, subject, since_s, now_s)

    def _throttling_since(self, points: deque[Point]) -> float | None:
        """When it began, where enough of the window's readings show it."""
        window = [point for point in points if point.at_s > points[-1].at_s - WINDOW_S]
        active = [point for point in window if point.kinds]
        if len(active) < MIN_READINGS or len(active) < SHARE * WINDOW_S / _spacing(window):
            return None
        return active[0].at_s

    def _report_throttling(self, finding_id: str, subject: str, since_s: float, now_s: float) -> list[Finding]:
        points = list(self._points[subject])
        recent = [point for point in points if point.kinds and point.at_s > points[-1].at_s - WINDOW_S]
        shown = frozenset().union(*(point.kinds for point in recent))
        kind = next((kind for kind in KINDS if kind in shown), "hw_slowdown")
        return self._held.hold(
            Finding(
                id=finding_id,
                cause=CAUSE,
                subject=subject,
                since_s=since_s,
                told_s=now_s,
                summary=self._summary(subject, kind, recent[-1] if recent else points[-1]),
                evidence=self._evidence(subject, kind, points),
                advice=ADVICE[kind],
            ),
            news=kind,
        )

    def _summary(self, subject: str, kind: str, last: Point) -> str:
        limits = self._limits[subject]
        parts = []
        if last.temperature_c is not None:
            slowdown = limits.get("temperature_slowdown_c")
            parts.append(f"{last.temperature_c:.0f} °C" + (f" (slows down at {slowdown:.0f} °C)" if slowdown else ""))
        if last.sm_clock_hz is not None:
            most = limits.get("sm_clock_max_hz")
            parts.append(f"{last.sm_clock_hz / 1e6:.0f} MHz" + (f" of {most / 1e6:.0f} MHz" if most else ""))
        figures = f": {', '.join(parts)}" if parts else ""
        return f"{self._book.label(subject)} throttles: {KINDS[kind]}{figures}."

    def _evidence(self, subject: str, kind: str, points: list[Point]) -> dict[str, Any]:
        return {
            "kind": kind,
            "device": self._book.label(subject),
            "model": self._book.model(subject),
            "limits": dict(self._limits[subject]),
            "series": {
                "at_s": [point.at_s for point in points],
                "is_throttling": [bool(point.kinds) for point in points],
                "sm_clock_hz": [point.sm_clock_hz for point in points],
                "temperature_c": [point.temperature_c for point in points],
                "memory_temperature_c": [point.memory_temperature_c for point in points],
                "power_w": [point.power_w for point in points],
            },
        }


def _point(at_s: float, values: dict[str, Value | None]) -> Point | None:
    """A reading; None where the driver does not say why clocks are as they are."""
    reasons = values.get("clock_reasons")
    if not isinstance(reasons, str):
        return None
    names = frozenset(reasons.split(","))
    kinds = names & KINDS.keys()
    if kinds == {"hw_slowdown"} and "idle" in names:
        kinds = frozenset()  # Reported while clocks change, too (nvml.h).
    return Point(
        at_s=at_s,
        kinds=kinds,
        sm_clock_hz=number(values, "sm_clock_hz"),
        temperature_c=number(values, "temperature_c"),
        memory_temperature_c=number(values, "memory_temperature_c"),
        power_w=number(values, "power_w"),
    )


def _active_since(points: deque[Point], since_s: float) -> bool:
    return any(point.kinds for point in points if point.at_s > since_s)


def _spacing(window: list[Point]) -> float:
    """Seconds from one reading to the next."""
    return (window[-1].at_s - window[0].at_s) / (len(window) - 1) if len(window) > 1 else WINDOW_S
