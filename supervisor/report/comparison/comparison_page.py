"""Two runs side by side, for a person, in one file: what differs, and both courses of each value in one drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from guardrun.supervisor.report.comparison.curve_words import bit_words, value_words
from guardrun.supervisor.report.comparison.curves import CurveComparison
from guardrun.supervisor.report.comparison.differences import KINDS, Comparison
from guardrun.supervisor.report.comparison.run_facts import CURVES, RunFacts
from guardrun.supervisor.report.elements.html_page import Guard, Table, make_table, render
from guardrun.supervisor.report.elements.quantities import place_words
from guardrun.supervisor.report.elements.scales import nice_step
from guardrun.supervisor.report.timeline.step_plot import Axis, lay_out_curves
from guardrun.supervisor.report.timeline.timeline_strips import Scale, Sign

MAX_POINTS = 600
"""Of a curve on the page."""
MAX_ROWS = 500
FAR = 2.0
"""Times the span of nearly all values: what lies beyond is at the drawing's edge, so that it flattens nothing."""
FLAT = 0.02
"""Share of a value within which it hardly moves: it is shown against 0."""


class StepScale(Scale):
    """Steps in place of seconds."""

    def ticks(self, wanted: int) -> list[tuple[float, str]]:
        """(per cent, step) of round steps."""
        every = max(1, round(nice_step(self.to_s - self.from_s, wanted)))
        first = -(-int(self.from_s) // every) * every
        return [(self.percent(step), f"{step:,}") for step in range(first, int(self.to_s) + 1, every)]


def comparison_html(a: RunFacts, b: RunFacts, found: Comparison) -> str:
    """The page."""
    # Each is called where its section stands, so that one that fails costs itself alone.
    parts: dict[str, Callable[[], Any]] = {
        "differences": lambda: _differences(found),
        "curves": lambda: [drawn for name in CURVES if (drawn := _drawing(name, a, b, found)) is not None],
        "same": lambda: [_sentence(words) for words in found.same],
        "unknown": lambda: [_sentence(words) for words in found.unknown],
        "runs": lambda: _runs(a, b),
        "missing": lambda: [_sentence(f"{run.run_id}: {words}") for run in (a, b) for words in run.missing],
    }
    return render(
        "compare.html",
        title=f"{a.run_id} and {b.run_id}",
        where="guardrun · two runs side by side",
        headline=headline(found),
        names=[("a", f"A: {a.run_id}"), ("b", f"B: {b.run_id}")],
        guard=Guard(),
        parts=parts,
    )


def headline(found: Comparison) -> str:
    """Both in a sentence or two."""
    if not found.differences:
        told = "Nothing that is known differs."
    else:
        first, count = found.differences[0], len(found.differences)
        more = f", and {count - 1} more difference{'s' if count > 2 else ''}" if count > 1 else ""
        told = f"Most telling: {KINDS[first.kind]} ({first.what}){more}."
    loss = found.curves.get("loss")
    return f"{told} Loss: {bit_words(loss)}." if loss is not None else told


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _differences(found: Comparison) -> Table | None:
    rows = [
        ("", [KINDS[one.kind], f"{one.what} ({one.note})" if one.note else one.what, one.a, one.b])
        for one in found.differences[:MAX_ROWS]
    ]
    return make_table(["Of", "What", "A", "B"], rows, wide=("What", "A", "B"))


def _runs(a: RunFacts, b: RunFacts) -> Table | None:
    facts: list[tuple[str, Callable[[RunFacts], str]]] = [
        ("run", lambda run: run.run_id),
        ("folder", lambda run: run.run_dir),
        ("each rank runs", lambda run: " ".join(run.script)),
        ("ranks", lambda run: str(run.first.world_size) if run.first else ""),
        ("nodes", lambda run: place_words(run.node, run.first.nodes if run.first else [])),
        ("outcome", lambda run: run.outcome.replace("_", " ") or run.state),
        ("last step", lambda run: "" if run.last_step is None else str(run.last_step)),
        ("attempts", lambda run: str(len(run.attempts))),
    ]
    rows = [("", [name, of(a), of(b)]) for name, of in facts]
    return make_table(["", "A", "B"], rows, wide=("A", "B"))


# Drawings -----------------------------------------------------------------------------------------------------------


def _drawing(name: str, a: RunFacts, b: RunFacts, found: Comparison) -> tuple[str, str, dict[str, Any] | None] | None:
    """Heading, a sentence, and both curves; None where neither run has one."""
    curves = [_plotted(run.curves[name].points) if name in run.curves else [] for run in (a, b)]
    one = found.curves.get(name)
    words = _words(name, one)
    heading = f"{CURVES[name][0].upper()}{CURVES[name][1:]}"
    shown = [point for points in curves for point in points]
    if len(shown) < 2:
        return (heading, words, None) if words else None
    steps = [step for step, _ in shown]
    scale = StepScale(min(steps), max(steps), 0.0)
    label = f"{heading} of both runs against steps{f': {words}' if words else ''}"
    return heading, words, lay_out_curves(curves, scale, _signs(one), _axis([value for _, value in shown]), label)


def _words(name: str, one: CurveComparison | None) -> str:
    if one is None:
        return ""
    if name != "learning_rate":
        return value_words(one)
    return "the same" if one.differs_from is None else f"different from step {one.differs_from} on"


def _signs(one: CurveComparison | None) -> list[Sign]:
    if one is None:
        return []
    signs = []
    if one.equal and one.unequal_from is not None:
        signs.append(Sign(float(one.unequal_from), f"not equal from {one.unequal_from} on", "soft"))
    if one.differs_from is not None:
        signs.append(Sign(float(one.differs_from), f"apart from {one.differs_from} on", "bad"))
    return signs


def _plotted(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Those that are finite; of many neighbours the lowest and the highest, so that no peak is lost."""
    finite = [(float(step), value) for step, value in points if math.isfinite(value)]
    if len(finite) <= MAX_POINTS:
        return finite
    size = -(-len(finite) // (MAX_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(finite), size):
        part = finite[start : start + size]
        kept += sorted({min(part, key=_value), max(part, key=_value)})
    return kept


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _axis(values: Sequence[float]) -> Axis:
    """Round ends around nearly all values."""
    ascending = sorted(values)
    near = ascending[len(ascending) // 50], ascending[-1 - len(ascending) // 50]
    span = near[1] - near[0]
    low, high = max(ascending[0], near[0] - FAR * span), min(ascending[-1], near[1] + FAR * span)
    if not math.isfinite(high - low):
        low, high = -1e300, 1e300
    if high - low < FLAT * abs(high):
        low, high = min(0.0, 1.5 * low), max(0.0, 1.5 * high)
    every = nice_step((high - low) or 1.0, 3)
    # 0 where that is near, so that little does not look like much.
    bottom = 0.0 if 0 <= low <= 0.5 * high else every * math.floor(low / every)
    top = max(every * math.ceil(high / every), bottom + every)
    return Axis(bottom, top, tuple((value, f"{value:.4g}") for value in (bottom, (bottom + top) / 2, top)))
