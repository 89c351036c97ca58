"""Inline SVG from a few helpers. Every text and every attribute is escaped here; nothing in it runs or is fetched.

Horizontal places are per cent, so that a drawing fits whatever width it gets while its text keeps its size.
"""

from __future__ import annotations

from guardrun.supervisor.report.elements.quantities import escape

Value = str | int | float


def tag(name: str, inner: str = "", /, **attributes: Value) -> str:
    """An element; names as in _NAMES, other underscores become dashes."""
    words = "".join(f' {_name(key)}="{escape(_number(value))}"' for key, value in attributes.items() if value != "")
    return f"<{name}{words}>{inner}</{name}>" if inner else f"<{name}{words}/>"


_NAMES = {
    "class_": "class",
    "view_box": "viewBox",
    "preserve": "preserveAspectRatio",
    "marker_width": "markerWidth",
    "marker_height": "markerHeight",
    "ref_x": "refX",
    "ref_y": "refY",
    "pattern_units": "patternUnits",
}


def _name(key: str) -> str:
    return _NAMES.get(key, key.replace("_", "-"))


def _number(value: Value) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def percent(value: float) -> str:
    """`12.34%`, within the drawing."""
    return f"{_number(round(min(max(value, 0.0), 100.0), 2))}%"


def title(text: str) -> str:
    """What is shown on hovering."""
    return f"<title>{escape(text)}</title>" if text else ""


def text(words: str, **attributes: Value) -> str:
    """A <text> element; words are escaped here."""
    return tag("text", escape(words), **attributes)


def rect(label: str = "", **attributes: Value) -> str:
    """A <rect> element. label: shown on hovering; empty: nothing is."""
    return tag("rect", title(label), **attributes)


def picture(inner: str, label: str, **attributes: Value) -> str:
    """The <svg> itself, with its description for those who cannot see it."""
    return tag("svg", inner, role="img", aria_label=label, **attributes)


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
