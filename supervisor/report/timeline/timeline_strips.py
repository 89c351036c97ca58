"""The timeline as a drawing: a strip for each rank, or for those that did the same, phases as bars.

Places along the time are per cent of the width, so it fits a phone and a wide screen alike. Of very many
ranks a folded picture has one thin line for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from guardrun.supervisor.engine.observation.frames import ranks_text
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.report.elements.scales import nice_seconds, percent, shorten
from guardrun.supervisor.report.timeline.rank_track import Segment
from guardrun.supervisor.report.timeline.timeline import RankRow, View

# Timeline rows ------------------------------------------------------------------------------------------------------
# Which ranks share a strip of the timeline: past MAX_EACH of them, those that did the same.


MAX_EACH = 64
MAX_ROWS = 24
ALIKE_GRAINS = 10
"""Ranks share a strip where they differ by less than this part of the window: a pause of a step is no difference."""


class Line(NamedTuple):
    """One strip: one rank's, or that of all that did the same."""

    ranks: list[int]
    row: RankRow
    is_culprit: bool


def make_lines(view: View, culprits: Sequence[int]) -> tuple[list[Line], int]:
    """The strips, culprits first where not every rank has one; and how many are left out."""
    guilty = set(culprits)
    if len(view.rows) <= MAX_EACH:
        return [Line([row.rank], row, row.rank in guilty) for row in view.rows], 0
    alike: dict[object, list[RankRow]] = {}
    for row in view.rows:
        alike.setdefault((row.rank in guilty, looks_like(row, view, ALIKE_GRAINS)), []).append(row)
    lines = [Line([row.rank for row in rows], rows[0], rows[0].rank in guilty) for rows in alike.values()]
    lines.sort(key=lambda line: (not line.is_culprit, len(line.ranks), line.ranks[0]))
    # The largest is how everybody else was, and must not be among those left out.
    kept = lines if len(lines) <= MAX_ROWS else [*lines[: MAX_ROWS - 1], lines[-1]]
    return kept, len(lines) - len(kept)


def looks_like(row: RankRow, view: View, grains: int) -> object:
    """What two rows have in common when they differ by less than a grain of the window."""
    grain_s = max(view.to_s - view.from_s, 1e-9) / grains
    long = [s for s in (*row.phases, *row.overlays) if s.end_s - s.start_s > grain_s]
    # Where a long stretch begins is told by the one before it; short ones between them do not count.
    segments = tuple((s.kind, round((s.end_s - view.from_s) / grain_s)) for s in long)
    merged = tuple(s for n, s in enumerate(segments) if n + 1 == len(segments) or segments[n + 1][0] != s[0])
    return merged, row.exitcode


# Timeline strips ----------------------------------------------------------------------------------------------------


MAX_THIN = 2048
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

Bar = tuple[str, float, float, float, float, str]
"""Kind, x and width in per cent, y and height in pixels, what is shown on hovering."""


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
        step = nice_seconds(self.to_s - self.from_s, wanted)
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


def lay_out_strips(lines: Sequence[Line], scale: Scale, signs: Sequence[Sign], label: str) -> dict[str, Any]:
    """Labels, strips and last steps, side by side. label: the picture in a sentence."""
    shown, words_h = signs_within(signs, scale)
    top = max(words_h, TIER_H) + 4
    bottom = top + ROW_H * len(lines)
    has_steps = len(lines) <= TICK_STEPS
    return {
        "label": label,
        "height": bottom + 20,
        "bar_height": BAR_H,
        "axis": lay_out_axis(scale, shown, top, bottom),
        "lines": [_strip(line, scale, top + number * ROW_H, has_steps) for number, line in enumerate(lines)],
    }


def _name(line: Line) -> str:
    mark = "✖ " if line.is_culprit else ""
    words = ranks_text(line.ranks)
    if len(words) > 14:
        words = f"{len(line.ranks)} ranks"
    return f"{mark}{words}"


def _strip(line: Line, scale: Scale, y: int, has_steps: bool) -> dict[str, Any]:
    row = line.row
    return {
        "y": y,
        "name": _name(line),
        "is_culprit": line.is_culprit,
        "phases": [_phase(segment, scale, y + 4) for segment in row.phases],
        "steps": _step_ticks(row, scale) if has_steps else "",
        "overlays": [_overlay(segment, scale, y + 4) for segment in row.overlays],
        "words": [words for segment in row.phases if (words := _bar_words(segment, scale))],
        "end": "" if row.last_step is None else row.last_step,
    }


def _kind(kind: str) -> str:
    return kind if kind in NAMES else "other"


def _bar(segment: Segment, scale: Scale, y: float, height: float) -> Bar:
    left, right = scale.percent(segment.start_s), scale.percent(segment.end_s)
    hover = f"{NAMES.get(segment.kind, segment.kind)}: {duration(segment.end_s - segment.start_s)}"
    return _kind(segment.kind), percent(left), percent(max(right - left, 0.15)), y, height, hover


def _phase(segment: Segment, scale: Scale, y: float) -> Bar:
    """What only leads up to training is a thinner bar."""
    if segment.kind in SLIGHT:
        return _bar(segment, scale, y + BAR_H / 3, BAR_H / 3)
    return _bar(segment, scale, y, BAR_H)


def _overlay(segment: Segment, scale: Scale, y: int) -> Bar:
    """Each with a shape of its own: silence and a stop are hatched, a collection and a save are half a bar."""
    if segment.kind == "gc":
        return _bar(segment, scale, y + BAR_H / 2, BAR_H / 2)
    if segment.kind == "saving":
        return _bar(segment, scale, y, BAR_H / 2)
    return _bar(segment, scale, y, BAR_H)


def _bar_words(segment: Segment, scale: Scale) -> tuple[float, str] | None:
    """A phase's name in its bar, where that is wide enough on a phone too; training needs none."""
    left, right = scale.percent(segment.start_s), scale.percent(segment.end_s)
    if right - left < 22 or segment.kind == "train" or segment.kind in SLIGHT:
        return None
    return percent(left), shorten(NAMES.get(segment.kind, segment.kind), 9)


def _step_ticks(row: RankRow, scale: Scale) -> str:
    """Steps as thin lines, in one path: places in it are thousandths of the width."""
    places = sorted({round(10 * scale.percent(at_s)) for at_s, _ in row.steps if scale.from_s <= at_s <= scale.to_s})
    return "".join(f"M{place} 0v{BAR_H}" for place in places) if len(places) <= 160 else ""


def signs_within(signs: Sequence[Sign], scale: Scale) -> tuple[list[Sign], int]:
    """Those within the window, in their order, and the height that their words need."""
    shown = [sign for sign in sorted(signs) if scale.from_s <= sign.at_s <= scale.to_s]
    return shown, TIER_H * sum(1 for sign in shown if sign.words)


def lay_out_axis(scale: Scale, signs: Sequence[Sign], top: int, bottom: int) -> dict[str, Any]:
    """Ticks of time (x, words, class, anchor), and signs: x, y, kind, words, anchor and shift of the words.

    Each sign that has words is on a tier of its own. signs: those within the window, in their order.
    """
    ticks = []
    for number, (at, words) in enumerate(scale.ticks(5)):
        anchor = "start" if at < 6 else "end" if at > 94 else "middle"
        ticks.append((percent(at), words, "tick" if number % 2 == 0 else "tick every-other", anchor))
    placed, tier = [], 0
    for sign in signs:
        at = scale.percent(sign.at_s)
        anchor, shift = ("start", 4) if at < 60 else ("end", -4)
        placed.append((percent(at), TIER_H * tier + 11, sign.kind, sign.words, anchor, shift))
        tier += 1 if sign.words else 0
    return {"top": top, "bottom": bottom, "ticks": ticks, "signs": placed}


def lay_out_thin(view: View, scale: Scale) -> dict[str, Any]:
    """One thin line a rank; neighbours that did the same are drawn as one."""
    runs: list[tuple[object, RankRow, int]] = []
    for row in view.rows[:MAX_THIN]:
        look = looks_like(row, view, THIN_GRAINS)
        if runs and runs[-1][0] == look:
            runs[-1] = (look, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((look, row, 1))
    bars: list[Bar] = []
    y = 0
    for _, row, count in runs:
        height = THIN_H * count
        bars += [_bar(segment, scale, y, height) for segment in _visible((*row.phases, *row.overlays), scale)]
        y += height
    label = f"{len(view.rows)} ranks, one line of {THIN_H} pixels each, rank 0 on top"
    return {"label": label, "height": y, "bars": bars}


def _visible(segments: Sequence[Segment], scale: Scale) -> list[Segment]:
    """Those wider than a hair; at most 24."""
    least_s = (scale.to_s - scale.from_s) / 300
    wide = [segment for segment in segments if segment.end_s - segment.start_s >= least_s]
    if len(wide) > 24:
        longest = set(sorted(wide, key=lambda s: s.start_s - s.end_s)[:24])
        wide = [segment for segment in wide if segment in longest]
    return wide


def legend(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """What the bars mean: kind and words of those that are there."""
    there = {_kind(segment.kind) for line in lines for segment in (*line.row.phases, *line.row.overlays)}
    return [(kind, words) for kind, words in NAMES.items() if kind in there]
