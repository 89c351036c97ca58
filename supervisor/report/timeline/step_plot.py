"""Seconds a step, against time, and on the same axis what a part of a node showed: heat, clock, power."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.report.elements.scales import nice_step, percent
from guardrun.supervisor.report.timeline.timeline import TRAINING, FrontPoint
from guardrun.supervisor.report.timeline.timeline_strips import Scale, Sign, lay_out_axis, signs_within

LEAST_S = 1.5
"""Reports come once a second: over less than this a step's time would be mostly that of the reports."""
LEAST_POINTS = 4
MAX_POINTS = 360
HEIGHT = 132
WIDE = 1000


class StepTime(NamedTuple):
    """How long steps took at a moment."""

    at_s: float
    step_s: float
    step: int
    attempt: int


def step_times(front: Sequence[FrontPoint]) -> list[StepTime]:
    """Mean seconds a step over stretches of LEAST_S or more, each within one attempt."""
    found: list[StepTime] = []
    begin: FrontPoint | None = None
    attempt = -1
    for point in front:
        if point.attempt != attempt:
            # Its first point may be the checkpoint's step, from before anything was done.
            attempt, begin = point.attempt, None
        elif begin is None or point.step < begin.step:
            begin = point
        elif point.at_s - begin.at_s >= LEAST_S and point.step > begin.step:
            took_s = (point.at_s - begin.at_s) / (point.step - begin.step)
            found.append(StepTime((point.at_s + begin.at_s) / 2, took_s, point.step, point.attempt))
            begin = point
    return found


def thin(series: Sequence[StepTime], most: int = MAX_POINTS) -> list[StepTime]:
    """Fewer points: of each run of neighbours the slowest and the middle one, so that no peak is lost."""
    if len(series) <= most:
        return list(series)
    size = -(-len(series) // (most // 2))
    kept: list[StepTime] = []
    for start in range(0, len(series), size):
        part = sorted(series[start : start + size], key=lambda p: p.step_s)
        kept += sorted({part[len(part) // 2], part[-1]})
    return kept


def seconds_words(seconds: float) -> str:
    """`12 ms`, `0.25 s`, `3 min`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def summary(series: Sequence[StepTime]) -> str:
    """The plot in a sentence."""
    usual_s = median(point.step_s for point in series)
    slowest = max(series, key=lambda point: point.step_s)
    words = f"{seconds_words(usual_s)} a step as a rule"
    if slowest.step_s > 1.5 * usual_s:
        words += f"; at most {seconds_words(slowest.step_s)}, before step {slowest.step}"
    return words


def lay_out_plot(series: Sequence[StepTime], scale: Scale, signs: Sequence[Sign]) -> dict[str, Any] | None:
    """The curve, one line an attempt; None for fewer than LEAST_POINTS."""
    series = thin(series)
    if len(series) < LEAST_POINTS:
        return None
    top_s = _top(series)
    curves = [[(point.at_s, point.step_s) for point in part] for part in _by_attempt(series)]
    label = f"Seconds a step against time: {summary(series)}"
    ticks = ((0.0, "0"), (top_s / 2, seconds_words(top_s / 2)), (top_s, seconds_words(top_s)))
    _, top = signs_within(signs, scale)
    over = _cut_off(series, scale, top_s, top + 12)
    return lay_out_curves(curves, scale, signs, Axis(0.0, top_s, ticks), label, over=over)


class Axis(NamedTuple):
    """A plot's upright axis."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    """Values and their words."""
    height: int = HEIGHT
    """Pixels."""

    def y(self, value: float) -> float:
        """Pixels from the top; what is beyond an end is at it."""
        share = (value - self.low) / (self.high - self.low)
        return self.height - (self.height - 8) * min(max(share, 0.0), 1.0)


Words = tuple[float, int, str, str]
"""x in per cent, y in pixels, the words, and which end of them is there."""


def lay_out_curves(
    curves: Sequence[Sequence[tuple[float, float]]],
    scale: Scale,
    signs: Sequence[Sign],
    axis: Axis,
    label: str,
    *,
    over: Sequence[Words] = (),
) -> dict[str, Any]:
    """Lines through (when, value), with grid, signs and ticks. label: the picture in a sentence; over: drawn on top."""
    shown, top = signs_within(signs, scale)
    return {
        "label": label,
        "axis": lay_out_axis(scale, shown, top, top + axis.height),
        "ticks": [(top + max(axis.y(value) + 4, 10), words) for value, words in axis.ticks],
        "width": WIDE,
        "height": axis.height,
        "curves": [" ".join(_place(point, scale, axis) for point in part) for part in curves],
        "over": over,
    }


def _top(series: Sequence[StepTime]) -> float:
    """Where the plot ends: a single slow stretch must not flatten all the rest."""
    times = sorted(point.step_s for point in series)
    usual_s, slowest_s = times[len(times) // 2], times[-1]
    wanted_s = slowest_s if slowest_s <= 6 * usual_s else max(3 * usual_s, times[int(0.95 * (len(times) - 1))])
    step = nice_step(wanted_s * 1.05, 4)
    return step * max(1, -(-wanted_s * 1.05 // step))


def _by_attempt(series: Sequence[StepTime]) -> list[list[StepTime]]:
    parts: list[list[StepTime]] = []
    for point in series:
        if parts and parts[-1][-1].attempt == point.attempt:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def _place(point: tuple[float, float], scale: Scale, axis: Axis) -> str:
    at_s, value = point
    return f"{WIDE * scale.percent(at_s) / 100:.1f},{axis.y(value):.1f}"


def _cut_off(series: Sequence[StepTime], scale: Scale, top_s: float, y: int) -> list[Words]:
    """What is beyond the plot's top gets an arrow there with its figure."""
    beyond = sorted((p for p in series if p.step_s > top_s), key=lambda p: -p.step_s)[:3]
    places = [(scale.percent(point.at_s), f"▲ {seconds_words(point.step_s)}") for point in beyond]
    return [(percent(x), y, words, "end" if x > 50 else "start") for x, words in places]


# Gauges -------------------------------------------------------------------------------------------------------------
# What a part of a node showed over time, on the axis of the steps above it: a device's heat, its clock, its power.


GAUGE_HEIGHT = 84
UNITS = {
    "temperature_c": ("temperature", 1.0, "°C"),
    "memory_temperature_c": ("memory temperature", 1.0, "°C"),
    "sm_clock_hz": ("SM clock", 1e-6, "MHz"),
    "power_w": ("power", 1.0, "W"),
    "loss": ("loss", 1.0, ""),
    "grad_norm": ("norm of gradients", 1.0, ""),
    "learning_rate": ("learning rate", 1.0, ""),
    "left_out": ("steps left out", 1.0, ""),
}
"""Of a gauge's name: words, factor and unit for a person. Others are shown as they are called."""


def lay_out_gauge(
    key: tuple[str, str], points: Sequence[tuple[float, float]], scale: Scale, signs: Sequence[Sign]
) -> tuple[str, dict[str, Any]]:
    """One gauge in words, and its curve. points: (when, value), two or more."""
    subject, name = key
    words, factor, unit = UNITS.get(name, (name, 1.0, ""))
    values = [value * factor for _, value in points]
    low, high = _ends(min(values), max(values), least=0.0 if subject == TRAINING else 1.0)
    ticks = tuple((value, _words(value, "")) for value in (low, (low + high) / 2, high))
    whose = words if subject == TRAINING else f"{words} of {subject}"
    heading = f"{whose}: {_words(min(values), unit)} to {_words(max(values), unit)}"
    curve = [(at_s, value * factor) for at_s, value in points]
    drawing = lay_out_curves([curve], scale, signs, Axis(low, high, ticks, GAUGE_HEIGHT), f"{heading}, against time")
    return f"{heading[0].upper()}{heading[1:]}", drawing


def _ends(low: float, high: float, least: float) -> tuple[float, float]:
    """Round numbers around what is shown; 0 where that is near, so that little does not look like much.

    least: the shortest stretch that is shown.
    """
    step = nice_step(max(high - low, 0.1 * abs(high), least) or 1.0, 3)
    bottom = 0.0 if 0 <= low < 0.5 * high else step * (low // step)
    return bottom, max(step * -(-high // step), bottom + step)


def _words(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}".rstrip() if abs(value) < 10_000 else f"{value:,.0f} {unit}".rstrip()
