"""The timeline as a drawing: a strip for each rank, its phases as bars, what it suffered over them.

Places along the time are per cent of the width, so it fits a phone and a wide screen alike. Of very many
ranks a folded picture has one thin line for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.report.elements import svg
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.report.timeline.bounded_series import Segment
from guardrun.supervisor.report.timeline.timeline import RankRow, View
from guardrun.supervisor.report.timeline.timeline_rows import Line, looks_like

MAX_THIN = 2048
LABEL_W, END_W = 92, 58
ROW_H, BAR_H = 20, 12
TIER_H = 15
THIN_H = 4
THIN_GRAINS = 120
TICK_STEPS = 32
"""Ranks up to which steps are ticked."""

NAMES = {
    "start": "start",
    "train": "train",
    "eval": "eval",
    "data": "data",
    "save": "save",
    "load": "load",
    "init": "init",
    "compile": "compile",
    "other": "other",
    "silent": "no progress",
    "gc": "collecting garbage",
    "saving": "saving",
    "stopped": "stopped",
}
"""Kinds that have a look of their own; anything else is drawn as `other`."""

SLIGHT = frozenset({"start", "init", "load"})


class Sign(NamedTuple):
    """A moment that is marked through all strips."""

    at_s: float
    words: str
    kind: str
    """bad, good, soft"""


class Scale(NamedTuple):
    """A window of time, and what its ticks count from."""

    from_s: float
    to_s: float
    zero_s: float

    def percent(self, at_s: float) -> float:
        """Where a moment lies along the window: 0 at its start, 100 at its end, beyond both outside of it."""
        return 100 * (at_s - self.from_s) / max(self.to_s - self.from_s, 1e-9)

    def ticks(self, wanted: int) -> list[tuple[float, str]]:
        """(per cent, words) of round times, from zero_s on."""
        step = svg.nice_seconds(self.to_s - self.from_s, wanted)
        first = int((self.from_s - self.zero_s) // step)
        found = []
        for n in range(first, first + wanted * 3 + 3):
            at = self.percent(self.zero_s + n * step)
            if -0.01 <= at <= 100.01:
                found.append((at, tick_words(n * step)))
        return found


def tick_words(seconds: float) -> str:
    """`0`, `−30 s`, `+2 min`."""
    if not seconds:
        return "0"
    size = abs(seconds)
    words = f"{size:.0f} s" if size < 60 else duration(size).removesuffix(" 0 s")
    return f"{'−' if seconds < 0 else '+'}{words}"


def draw_strips(lines: Sequence[Line], scale: Scale, signs: Sequence[Sign], label: str) -> str:
    """Labels, strips and last steps, side by side."""
    shown, words_h = signs_within(signs, scale)
    top = max(words_h, TIER_H) + 4
    bottom = top + ROW_H * len(lines)
    height = bottom + 20
    has_steps = len(lines) <= TICK_STEPS
    middle = draw_grid(scale, top, bottom)
    for number, line in enumerate(lines):
        middle += _strip(line, scale, top + number * ROW_H, has_steps)
    middle += draw_signs(shown, scale, bottom)
    names = "".join(
        svg.text(
            _name(line), x=0, y=top + n * ROW_H + 14, class_="row-label culprit" if line.is_culprit else "row-label"
        )
        for n, line in enumerate(lines)
    )
    ends = svg.text("at step", x=6, y=top - 4, class_="tick") + "".join(
        svg.text(_end(line), x=6, y=top + n * ROW_H + 14, class_="tick") for n, line in enumerate(lines)
    )
    return (
        '<div class="chart">'
        + svg.tag("svg", names, width=LABEL_W, height=height, class_="side", aria_hidden="true")
        + svg.picture(_HATCH + middle, label, width="100%", height=height, class_="middle")
        + svg.tag("svg", ends, width=END_W, height=height, class_="side", aria_hidden="true")
        + "</div>"
    )


_HATCH = svg.tag(
    "defs",
    svg.tag(
        "pattern",
        svg.tag("path", d="M0 0h6v6h-6z", class_="silent-under") + svg.tag("path", d="M0 6L6 0", class_="hatch"),
        id="hatch",
        width=6,
        height=6,
        pattern_units="userSpaceOnUse",
    )
    + svg.tag(
        "pattern",
        svg.tag("path", d="M0 0h6v6h-6z", class_="stopped-under")
        + svg.tag("path", d="M0 6L6 0M0 0L6 6", class_="cross"),
        id="cross",
        width=6,
        height=6,
        pattern_units="userSpaceOnUse",
    ),
)


def _name(line: Line) -> str:
    mark = "✖ " if line.is_culprit else ""
    words = f"rank{'s' if len(line.ranks) > 1 else ''} {rank_list(line.ranks)}"
    if len(words) > 14:
        words = f"{len(line.ranks)} ranks"
    return f"{mark}{words}"


def _end(line: Line) -> str:
    if line.row.last_step is None:
        return ""
    return str(line.row.last_step)


def _strip(line: Line, scale: Scale, y: int, has_steps: bool) -> str:
    under = "".join(_phase(s, scale, y + 4) for s in line.row.phases)
    over = "".join(_overlay(s, scale, y + 4) for s in line.row.overlays)
    words = "".join(_bar_words(s, scale, y) for s in line.row.phases)
    ticks = _step_ticks(line.row, scale, y + 4) if has_steps else ""
    return under + ticks + over + words


def _kind_class(kind: str) -> str:
    return f"k-{kind if kind in NAMES else 'other'}"


def _bar(segment: Segment, scale: Scale, y: float, height: float) -> str:
    left, right = scale.percent(segment.start_s), scale.percent(segment.end_s)
    return svg.rect(
        f"{NAMES.get(segment.kind, segment.kind)}: {duration(segment.end_s - segment.start_s)}",
        x=svg.percent(left),
        y=y,
        width=svg.percent(max(right - left, 0.15)),
        height=height,
        class_=_kind_class(segment.kind),
    )


def _phase(segment: Segment, scale: Scale, y: float) -> str:
    """What only leads up to training is a thinner bar."""
    if segment.kind in SLIGHT:
        return _bar(segment, scale, y + BAR_H / 3, BAR_H / 3)
    return _bar(segment, scale, y, BAR_H)


def _overlay(segment: Segment, scale: Scale, y: int) -> str:
    """Each with a shape of its own: silence and a stop are hatched, a collection and a save are half a bar."""
    if segment.kind == "gc":
        return _bar(segment, scale, y + BAR_H / 2, BAR_H / 2)
    if segment.kind == "saving":
        return _bar(segment, scale, y, BAR_H / 2)
    return _bar(segment, scale, y, BAR_H)


def _bar_words(segment: Segment, scale: Scale, y: int) -> str:
    """A phase's name in its bar, where that is wide enough on a phone too; training needs none."""
    left, right = scale.percent(segment.start_s), scale.percent(segment.end_s)
    if right - left < 22 or segment.kind == "train" or segment.kind in SLIGHT:
        return ""
    words = NAMES.get(segment.kind, segment.kind)
    return svg.text(svg.shorten(words, 9), x=svg.percent(left), dx=4, y=y + 14, class_="in-bar")


def _step_ticks(row: RankRow, scale: Scale, y: int) -> str:
    """Steps as thin lines, in one path: places in it are thousandths of the width."""
    places = sorted({round(10 * scale.percent(at_s)) for at_s, _ in row.steps if scale.from_s <= at_s <= scale.to_s})
    if not places or len(places) > 160:
        return ""
    path = "".join(f"M{place} 0v{BAR_H}" for place in places)
    return svg.tag(
        "svg",
        svg.tag("path", d=path, class_="step"),
        x=0,
        y=y,
        width="100%",
        height=BAR_H,
        view_box=f"0 0 1000 {BAR_H}",
        preserve="none",
    )


def signs_within(signs: Sequence[Sign], scale: Scale) -> tuple[list[Sign], int]:
    """Those within the window, in their order, and the height that their words need."""
    shown = [sign for sign in sorted(signs) if scale.from_s <= sign.at_s <= scale.to_s]
    return shown, TIER_H * sum(1 for sign in shown if sign.words)


def draw_signs(signs: Sequence[Sign], scale: Scale, bottom: int) -> str:
    """Lines through all strips; each has its words on a tier of its own, so that none covers another's."""
    parts, tier = "", 0
    for sign in signs:
        at = scale.percent(sign.at_s)
        y = TIER_H * tier + 11
        tier += 1 if sign.words else 0
        anchor, shift = ("start", 4) if at < 60 else ("end", -4)
        x, kind = svg.percent(at), sign.kind
        parts += svg.tag("line", x1=x, x2=x, y1=y - 8, y2=bottom, class_=f"sign {kind}")
        if sign.words:
            parts += svg.text(sign.words, x=x, dx=shift, y=y, class_=f"sign-text {kind}", text_anchor=anchor)
    return parts


def draw_grid(scale: Scale, top: int, bottom: int) -> str:
    """Ticks of time."""
    parts = ""
    ticks = scale.ticks(5)
    for number, (at, words) in enumerate(ticks):
        parts += svg.tag("line", x1=svg.percent(at), x2=svg.percent(at), y1=top, y2=bottom, class_="grid")
        anchor = "start" if at < 6 else "end" if at > 94 else "middle"
        kind = "tick" if number % 2 == 0 else "tick every-other"
        parts += svg.text(words, x=svg.percent(at), y=bottom + 15, class_=kind, text_anchor=anchor)
    return parts


def draw_thin(view: View, scale: Scale) -> str:
    """One thin line a rank; neighbours that did the same are drawn as one."""
    runs: list[tuple[object, RankRow, int]] = []
    for row in view.rows[:MAX_THIN]:
        look = looks_like(row, view, THIN_GRAINS)
        if runs and runs[-1][0] == look:
            runs[-1] = (look, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((look, row, 1))
    parts, y = "", 0
    for _, row, count in runs:
        height = THIN_H * count
        for segment in _visible((*row.phases, *row.overlays), scale):
            parts += _bar(segment, scale, y, height)
        y += height
    label = f"{len(view.rows)} ranks, one line of {THIN_H} pixels each, rank 0 on top"
    return f'<div class="thin">{svg.picture(_HATCH + parts, label, width="100%", height=y, class_="middle")}</div>'


def _visible(segments: Sequence[Segment], scale: Scale) -> list[Segment]:
    """Those wider than a hair; at most 24."""
    least_s = (scale.to_s - scale.from_s) / 300
    wide = [segment for segment in segments if segment.end_s - segment.start_s >= least_s]
    if len(wide) > 24:
        longest = set(sorted(wide, key=lambda s: s.start_s - s.end_s)[:24])
        wide = [segment for segment in wide if segment in longest]
    return wide


def legend(lines: Sequence[Line]) -> str:
    """What the bars mean: those kinds that are there."""
    there = {segment.kind for line in lines for segment in (*line.row.phases, *line.row.overlays)}
    kinds = [kind for kind in NAMES if kind in there] + (["other"] if there - set(NAMES) else [])
    items = "".join(f"<li>{_swatch(kind)} {NAMES[kind]}</li>" for kind in dict.fromkeys(kinds))
    return f'<ul class="legend">{items}<li>thin lines: steps</li></ul>' if items else ""


def _swatch(kind: str) -> str:
    bar = svg.rect(width="100%", height="100%", class_=_kind_class(kind))
    return svg.tag("svg", bar, width=18, height=10, aria_hidden="true")
