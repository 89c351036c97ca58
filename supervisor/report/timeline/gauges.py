"""What a part of a node showed over time, on the axis of the steps above it: a device's heat, its clock, its power."""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.report.elements import html_page, svg
from guardrun.supervisor.report.timeline.step_plot import Axis, draw_curves
from guardrun.supervisor.report.timeline.timeline_strips import Scale, Sign

HEIGHT = 84
UNITS = {
    "temperature_c": ("temperature", 1.0, "°C"),
    "memory_temperature_c": ("memory temperature", 1.0, "°C"),
    "sm_clock_hz": ("SM clock", 1e-6, "MHz"),
    "power_w": ("power", 1.0, "W"),
}
"""Of a gauge's name: words, factor and unit for a person. Others are shown as they are called."""


def draw_gauge(key: tuple[str, str], points: Sequence[tuple[float, float]], scale: Scale, signs: Sequence[Sign]) -> str:
    """One gauge's curve under a line of words. points: (when, value), two or more."""
    subject, name = key
    words, factor, unit = UNITS.get(name, (name, 1.0, ""))
    values = [value * factor for _, value in points]
    low, high = _ends(min(values), max(values))
    ticks = tuple((value, _words(value, "")) for value in (low, (low + high) / 2, high))
    heading = f"{words} of {subject}: {_words(min(values), unit)} to {_words(max(values), unit)}"
    curve = [(at_s, value * factor) for at_s, value in points]
    return html_page.paragraph(f"{heading[0].upper()}{heading[1:]}.") + draw_curves(
        [curve], scale, signs, Axis(low, high, ticks, HEIGHT), f"{heading}, against time"
    )


def _ends(low: float, high: float) -> tuple[float, float]:
    """Round numbers around what is shown; 0 where that is near, so that little does not look like much."""
    step = svg.nice_step(max(high - low, 0.1 * abs(high), 1.0), 3)
    bottom = 0.0 if 0 <= low < 0.5 * high else step * (low // step)
    return bottom, max(step * -(-high // step), bottom + step)


def _words(value: float, unit: str) -> str:
    return f"{value:,.4g} {unit}".rstrip() if abs(value) < 10_000 else f"{value:,.0f} {unit}".rstrip()
