"""Where things stand on a drawing: round distances between ticks, places in per cent, words that fit."""

from __future__ import annotations


def percent(value: float) -> float:
    """A place within the drawing, along its width."""
    return round(min(max(value, 0.0), 100.0), 2)


def shorten(words: str, chars: int) -> str:
    """At most that many characters, the end cut off and marked."""
    return words if len(words) <= chars else f"{words[: max(chars - 1, 1)]}…"


def nice_step(span: float, wanted: int) -> float:
    """A round distance (1, 2, 5 × 10ⁿ; of time: seconds, minutes, hours) that cuts span into about `wanted` parts."""
    if span <= 0:
        return 1.0
    raw = span / max(wanted, 1)
    size = 1e-6
    while size * 10 <= raw:
        size *= 10
    return next((size * factor for factor in (1, 2, 5) if size * factor >= raw), size * 10)


_CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


def nice_seconds(span_s: float, wanted: int) -> float:
    """Likewise, as clocks and people count."""
    raw = span_s / max(wanted, 1)
    return next((float(step) for step in _CLOCK_STEPS if step >= raw), 86400.0 * max(1, round(raw / 86400)))
