"""What a part of a node showed over time, on the axis of the steps above it: a device's heat, its clock, its power."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guardrun.supervisor.report.elements.scales import nice_step
from guardrun.supervisor.report.timeline.step_plot import Axis, lay_out_curves
from guardrun.supervisor.report.timeline.timeline_strips import Scale, Sign

HEIGHT = 84
UNITS = {
    "temperature_c": ("temperature", 1.0, "°C"),
    "memory_temperature_c": ("memory temperature", 1.0, "°C"),
    "sm_clock_hz": ("SM clock", 1e-6, "MHz"),
    "power_w": ("power", 1.0, "W"),
}
"""Of a gauge's name: words, factor and unit for a person. Others are shown as they are called."""


def lay_out_gauge(
    key: tuple[str, str], points: Sequence[tuple[float, float]], scale: Scale, signs: Sequence[Sign]
) -> tuple[str, dict[str, Any]]:
    """One gauge in words, and its curve. points: (when, value), two or more."""
    subject, name = key
    words, factor, unit = UNITS.get(name, (name, 1.0, ""))
    values = [value * factor for _, value in points]
    low, high = _ends(min(values), max(values))
    ticks = tuple((value, _words(value, "")) for value in (low, (low + high) / 2, high))
    heading = f"{words} of {subject}: {_words(min(values), unit)} to {_words(max(values), unit)}"
    curve = [(at_s, value * factor) for at_s, value in points]
    drawing = lay_out_curves([curve], scale, signs, Axis(low, high, ticks, HEIGHT), f"{heading}, against time")
    return f"{heading[0].upper()}{heading[1:]}", drawing


def _ends(low: float, high: float) -> tuple[float, float]:
    """Round numbers around what is shown; 0 where that is near, so that little does not look like much."""
    step = nice_step(max(high - low, 0.1 * abs(high), 1.0), 3)
    bottom = 0.0 if 0 <= low < 0.5 * high else step * (low // step)
    return bottom, max(step * -(-high // step), bottom + step)


def _words(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}".rstrip() if abs(value) < 10_000 else f"{value:,.0f} {unit}".rstrip()
