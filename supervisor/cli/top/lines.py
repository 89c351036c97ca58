"""What a painted line is made of: pieces of text in named styles, fitted to a width; curves; numbers in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size

from guardrun.supervisor.cli.base.output import clean
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.watch.run_view import Point

PLAIN, BOLD, DIM, GOOD, YELLOW, RED, TITLE = "", "strong", "faint", "good", "warn", "bad", "title"
STYLES = {
    "strong": "bold",
    "faint": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "title": "bold reverse",
    "curve": "cyan",
    "work": "green",
    "waiting": "cyan",
    "data": "yellow",
    "gc": "magenta",
}
"""As rich has them: of the terminal's own sixteen colours."""
SPARKS = " ▁▂▃▄▅▆▇█"
_HOLD_S = 9.0
"""A value goes on in a curve for so long: reports come every four seconds or so."""


class Piece(NamedTuple):
    """A text in one style."""

    text: str
    style: str = PLAIN


Line = list[Piece]


def fit(line: Line, width: int) -> Line:
    """The same line, as many cells wide: cut, or with blanks at its end; and without control characters."""
    fitted: Line = []
    left = width
    for raw, style in line:
        text = raw if raw.isprintable() else clean(raw)
        wide = cell_len(text)
        if wide > left:
            if left > 0:
                fitted.append(Piece(set_cell_size(text, left - 1) + "…", style))
            return fitted
        fitted.append(Piece(text, style))
        left -= wide
    return [*fitted, Piece(" " * left)] if left else fitted


def text_of(line: Line) -> str:
    """Without styles."""
    return "".join(piece.text for piece in line)


def wrap(text: str, width: int, most: int) -> list[str]:
    """A sentence in lines, broken at blanks, and in words that are longer than a line; at most so many, then cut."""
    lines: list[str] = []
    for word in clean(text).split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        for part in chop_cells(word, max(width, 1)):
            if len(lines) == most:
                lines[-1] = set_cell_size(lines[-1], min(cell_len(lines[-1]), width - 2)).rstrip() + " …"
                return lines
            lines.append(part)
    return lines


def range_of(points: Sequence[Point]) -> tuple[float, float]:
    """The lowest and the highest value."""
    values = [point.value for point in points] or [0.0]
    return min(values), max(values)


def spark(points: Sequence[Point], until_s: float, width: int, rows: int = 1) -> list[str]:
    """A curve from the first point to until_s, from its lowest value to its highest, a tenth of that at least.

    A column has the mean of its points; one without goes on with the last value for _HOLD_S, and is blank then.
    """
    if not points or width <= 0:
        return [""] * rows
    from_s = points[0].at_s
    long_s = max(until_s - from_s, 1e-9)
    sums = [0.0] * width
    counts = [0] * width
    for point in points:
        column = min(max(int((point.at_s - from_s) / long_s * width), 0), width - 1)
        sums[column] += point.value
        counts[column] += 1
    low, high = range_of(points)
    wide = max(high - low, abs(high) * 0.1, 1e-12)
    levels: list[int] = []
    value, since = 0.0, math.inf
    for total, count in zip(sums, counts, strict=True):
        since = 0.0 if count else since + long_s / width
        value = total / count if count else value
        levels.append(0 if since > _HOLD_S else 1 + max(0, min(int((value - low) / wide * 8 * rows), 8 * rows - 1)))
    return ["".join(SPARKS[min(max(level - 8 * row, 0), 8)] for level in levels) for row in reversed(range(rows))]


def seconds_words(value: float) -> str:
    """`4.2 ms`, `250 ms`, `1.25 s`, `2 min`."""
    if value < 0.9995:
        return f"{value * 1000:.0f} ms" if value >= 0.0095 else f"{value * 1000:.1f} ms"
    return duration(value) if value >= 9.95 else f"{value:.2f} s"
