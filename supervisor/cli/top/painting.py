"""The view of a run as lines of a terminal, for any size from 20 columns on: pure, and bounded by the size.

A line is pieces of text, each with a style; whoever shows them decides what a style looks like. Nothing is told by a
style alone, and what a run says has been made harmless: control characters are blanks, and there is no markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from guardrun.supervisor.cli.base.output import clean
from guardrun.supervisor.cli.top.lines import (
    BOLD,
    DIM,
    GOOD,
    PLAIN,
    RED,
    TITLE,
    YELLOW,
    Line,
    Piece,
    fit,
    range_of,
    seconds_words,
    spark,
    text_of,
    wrap,
)
from guardrun.supervisor.cli.top.panels import column_panels, stack_panels
from guardrun.supervisor.engine.failures.cuda_memory import size as bytes_words
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.watch.run_view import Most, Point, RunView, Use

STATES = {
    "training": GOOD,
    "ended": GOOD,
    "suspicious": YELLOW,
    "stalled": YELLOW,
    "held": YELLOW,
    "unreachable": RED,
    "unfinished": RED,
}
_USES = {"work": ("█", "work"), "waiting": ("▒", "waiting"), "data": ("▓", "data"), "gc": ("░", "gc")}
"""Of where time goes: sign and style."""
_LABEL = 10
_TWO_COLUMNS = 140
"""From this width on ranks stand beside incidents and log."""
_NO_HEAT = "nothing was found of a device, so no readings are kept"


class Key(NamedTuple):
    """What a key does, for the last line."""

    key: str
    label: str


def paint(
    view: RunView, width: int, height: int, *, age_s: float, window: str, keys: Sequence[Key], message: str = ""
) -> list[Line]:
    """Exactly `height` lines of exactly `width` cells. age_s: of what it shows; window: the curves', in words."""
    width = max(width, 20)
    foot = [*([Piece(line, BOLD)] for line in wrap(message, width, 3)), _keys(keys, width)]
    head = _head(view, age_s, width)
    vitals = _vitals(view, width, window, _curve_rows(height))
    room = height - len(foot) - len(head) - len(vitals)
    body = column_panels(view, width, room) if width >= _TWO_COLUMNS else stack_panels(view, width, room)
    lines = [*head, *vitals, *body][: max(0, height - len(foot))]
    lines += [[] for _ in range(height - len(foot) - len(lines))]
    return [fit(line, width) for line in (lines + foot)[:height]]


# Head -----------------------------------------------------------------------------------------------------------------


def _head(view: RunView, age_s: float, width: int) -> list[Line]:
    state = clean(view.state).upper()
    age = "" if view.is_over else f" {age_s:.0f} s ago" if age_s >= 1.5 else " now"
    right = f"{state}{age} "
    name = set_cell_size(f" {clean(view.run_id)}", max(0, width - cell_len(right)))
    lines: list[Line] = [[Piece(name, TITLE), Piece(right, f"{TITLE} {STATES.get(view.state, PLAIN)}".strip())]]
    ranks = view.ranks.total or view.world_size
    nodes = f"{view.ranks.nodes:,} nodes" if view.ranks.nodes > 1 else clean(view.node)
    facts = [
        clean(view.outcome),
        f"step {view.step:,}" if view.step is not None else "",
        f"{ranks:,} rank{'s' if ranks != 1 else ''} on {nodes}",
        f"{'took' if view.is_over else 'up'} {duration(view.uptime_s)}",
        f"attempt {view.attempt}" if view.attempt else "",
        f"{view.restarts} restart{'s' if view.restarts != 1 else ''}" if view.restarts else "",
        f"checkpoint {view.checkpoint_step:,}" if view.checkpoint_step is not None else "",
    ]
    lines.append([Piece(f" {' · '.join(fact for fact in facts if fact)}")])
    if view.is_held:
        lines.append([Piece(" HELD: guardrun watches and changes nothing until it is let go (h)", YELLOW)])
    for text, style, most in (
        (view.stall, f"{BOLD} {YELLOW}", 2),
        (view.outlook, PLAIN, 1),
        (view.reason, PLAIN, 2),
        ("" if view.source == "supervisor" and not view.why else _source(view), DIM, 2),
    ):
        lines += [[Piece(f" {line}", style)] for line in wrap(text, width - 2, most)]
    lines += [[Piece(f" {line}", DIM)] for note in view.notes[:2] for line in wrap(note, width - 2, 1)]
    return lines


def _source(view: RunView) -> str:
    return view.why if view.source == "supervisor" else f"from its folder: {view.why}"


# Vital signs ----------------------------------------------------------------------------------------------------------


def _curve_rows(height: int) -> int:
    """How many lines a curve may have."""
    return 1 if height < 40 else 3 if height < 50 else 5


def _vitals(view: RunView, width: int, window: str, rows: int) -> list[Line]:
    step = seconds_words(view.step_time_s) if view.step_time_s is not None else "not known"
    loss = f"{view.loss:.4g}" if view.loss is not None else "not seen"
    numbers = [
        f"norm {view.grad_norm:.3g}" if view.grad_norm is not None else "",
        f"rate {view.learning_rate:.3g}" if view.learning_rate is not None else "",
    ]
    computed = "  ".join(number for number in numbers if number)
    return [
        _labelled("Goodput", _goodput(view, width - _LABEL - 1)),
        *_curve("Step", step, _Curve(view.step_times, view.now_s, rows, seconds_words), window, width),
        *_curve("Loss", loss, _Curve(view.losses, view.now_s, rows, _number), computed, width),
        _labelled("Time", _time(view.time, width - _LABEL - 1)),
        _labelled("Memory", _memory(view.memory)),
        _labelled("Heat", _heat(view)),
    ]


def _labelled(label: str, pieces: Line) -> Line:
    return [Piece(f" {label:<{_LABEL - 1}}", DIM), *pieces]


def _goodput(view: RunView, width: int) -> Line:
    if view.goodput is None:
        return [Piece("not known", DIM)]
    share = min(max(view.goodput, 0.0), 1.0)
    wide = max(8, min(24, width // 4))
    full = round(share * wide)
    style = GOOD if share >= 0.9 else YELLOW if share >= 0.5 else RED
    lost = " · ".join(f"{clean(use.name)} {duration(use.seconds)}" for use in view.lost)
    said = f"  lost: {lost}" if lost else ""
    return [Piece(f"{share:<5.0%} ", BOLD), Piece("━" * full, style), Piece("─" * (wide - full), DIM), Piece(said)]


def _number(value: float) -> str:
    return f"{value:.3g}"


class _Curve(NamedTuple):
    """What is drawn of a series."""

    points: Sequence[Point]
    until_s: float
    rows: int
    words: Callable[[float], str]


def _curve(label: str, value: str, curve: _Curve, more: str, width: int) -> list[Line]:
    """The value, a curve of some lines, its range, and what else there is to say."""
    low, high = range_of(curve.points)
    spread = f" {curve.words(low)}…{curve.words(high)}" if curve.points else ""
    said = f"{spread}{f'  {more}' if more else ''}"
    wide = max(0, width - _LABEL - 10 - cell_len(said) - 1)
    if len(curve.points) < 2:
        return [_labelled(label, [Piece(f"{value:<9} ", BOLD), Piece(said, DIM)])]
    first, *others = spark(curve.points, curve.until_s, wide, curve.rows)
    lines = [_labelled(label, [Piece(f"{value:<9} ", BOLD), Piece(first, "curve"), Piece(said, DIM)])]
    return lines + [_labelled("", [Piece(" " * 10), Piece(drawn, "curve")]) for drawn in others]


def _time(uses: Sequence[Use], width: int) -> Line:
    if not uses:
        return [Piece("not known: hooks report it every four seconds or so", DIM)]
    known = [use for use in uses if use.name in _USES]
    said = "  ".join(f"{_USES[use.name][0]} {use.name} {use.share:.0%}" for use in known)
    wide = max(0, min(60, width - cell_len(said) - 2))
    bar: Line = []
    end = filled = 0.0
    for use in known:
        end += use.share * wide
        sign, style = _USES[use.name]
        count = round(end) - round(filled)
        filled = end
        bar.append(Piece(sign * count, style))
    words: Line = []
    for use in known:
        sign, style = _USES[use.name]
        words += [Piece(f"  {sign}", style), Piece(f" {use.name} {use.share:.0%}")]
    return [*bar, Piece(" " * max(0, wide - round(filled))), *words]


def _memory(sizes: Sequence[Most]) -> Line:
    if not sizes:
        return [Piece("not read yet: it is every half minute or so", DIM)]
    said: Line = []
    for one in sizes:
        of = f" of {bytes_words(one.limit)}" if one.limit else ""
        style = RED if one.limit and one.most > 0.95 * one.limit else PLAIN
        median = f", median {bytes_words(one.median)}" if one.most > 1.05 * one.median else ""
        said += [
            Piece(f"{'   ' if said else ''}{one.name} ", DIM),
            Piece(bytes_words(one.most), style or BOLD),
            Piece(f"{of} (rank {one.rank}{median})"),
        ]
    return said


def _heat(view: RunView) -> Line:
    if not view.heat:
        return [Piece(_NO_HEAT, DIM)]
    said: Line = []
    for one in view.heat:
        where = f"rank {one.rank}" if one.rank is not None else clean(one.device)
        style = RED if one.temp_c >= 90 else YELLOW if one.temp_c >= 83 else PLAIN
        ago_s = view.now_s - one.at_s
        age = f", {duration(ago_s)} ago" if ago_s >= 60 else ""
        said += [
            Piece(f"{'  ' if said else ''}{one.temp_c:.0f} °C", style or BOLD),
            Piece(f" {where} on {clean(one.node)}{age}"),
        ]
    return said


def _keys(keys: Sequence[Key], width: int) -> Line:
    """As many as there is room for; the last two are always there."""
    always = [piece for key in keys[-2:] for piece in _key(key)]
    left = width - cell_len(text_of(always))
    line: Line = []
    for key in keys[:-2]:
        one = _key(key)
        left -= cell_len(text_of(one))
        if left < 0:
            break
        line += one
    return [*line, *always]


def _key(key: Key) -> Line:
    return [Piece(f" {key.key}", BOLD), Piece(f" {key.label} ", DIM)]
