"""The lower part of the view: ranks, each or folded, incidents, log. Pure, and bounded by the room that there is."""

from __future__ import annotations

import math
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
    SPARKS,
    YELLOW,
    Line,
    Piece,
    fit,
    seconds_words,
)
from guardrun.supervisor.engine.failures.cuda_memory import size as bytes_words
from guardrun.supervisor.report.elements.quantities import duration
from guardrun.supervisor.watch.rank_oddness import BAD, FINE, NOTE, WARN
from guardrun.supervisor.watch.rank_view import RankRow, Spread
from guardrun.supervisor.watch.run_view import RunView

TONES = {FINE: PLAIN, NOTE: PLAIN, WARN: YELLOW, BAD: RED}
LEVELS = {"info": PLAIN, "good": GOOD, "warn": YELLOW, "bad": RED}
_CELLS = {FINE: "·", NOTE: "+", WARN: "▒", BAD: "█"}


def stack_panels(view: RunView, width: int, room: int) -> list[Line]:
    """Below each other: incidents get a fifth at most, the log what ranks leave, a quarter of the rest at least."""
    incidents = min(len(view.incidents), max(1, room // 5)) if view.incidents else 0
    room -= incidents + 1 if incidents else 0
    wanted = _wanted(view)
    log = max(0, min(len(view.log), max(room - 1 - wanted - 1, room // 4)))
    ranks = room - 1 - (log + 1 if log else 0)
    return [
        *_ranks_panel(view, width, ranks),
        *(_incidents_panel(view, width, incidents) if incidents else []),
        *(_log_panel(view, width, log) if log else []),
    ]


def column_panels(view: RunView, width: int, room: int) -> list[Line]:
    """Ranks to the left, incidents above the log to the right."""
    left_wide = max(80, width * 11 // 20)
    right_wide = width - left_wide - 2
    incidents = min(max(len(view.incidents), 1), max(1, room // 3))
    left = _ranks_panel(view, left_wide, room - 1)
    right = [
        *_incidents_panel(view, right_wide, incidents),
        *_log_panel(view, right_wide, max(1, room - incidents - 2)),
    ]
    lines = max(len(left), len(right))
    left += [[] for _ in range(lines - len(left))]
    right += [[] for _ in range(lines - len(right))]
    return [[*fit(one, left_wide), Piece("  "), *other] for one, other in zip(left, right, strict=True)]


def _rule(title: str, more: Line, width: int) -> Line:
    said: Line = [Piece("── ", DIM), Piece(f"{title} ", BOLD), *more]
    wide = sum(cell_len(piece.text) for piece in said)
    return [*said, Piece(f" {'─' * max(0, width - wide - 1)}" if wide < width else "", DIM)]


def _wanted(view: RunView) -> int:
    """Lines that ranks would fill: a table with all of them, or folded ones and a table of those that stand out."""
    ranks = view.ranks
    return 1 + (ranks.total if ranks.total <= len(ranks.rows) else min(ranks.odd, len(ranks.rows)) + 8)


def _ranks_panel(view: RunView, width: int, room: int) -> list[Line]:
    """A heading and at most `room` lines: each rank where they fit; else all folded, and those that stand out."""
    ranks = view.ranks
    odd: Line = [Piece(f"{ranks.total:,}")]
    if ranks.odd:
        odd.append(Piece(f" · {ranks.odd:,} stand{'s' if ranks.odd == 1 else ''} out", YELLOW))
    fits = ranks.total <= len(ranks.rows) and ranks.total + 1 <= room
    if not fits:
        odd.append(Piece(_map_legend(view, width, room), DIM))
    lines = [_rule("Ranks", odd, width)]
    if room < 1:
        return lines
    if not ranks.total:
        return [*lines, [Piece(" none yet" if not view.is_over else " none are known", DIM)]]
    rows = sorted(ranks.rows, key=lambda row: row.rank) if fits else list(ranks.rows)
    folded = [] if fits else _fold(view, width, room)
    left = room - len(folded)
    if not fits:
        rows = [row for row in rows if row.tone] or (rows if ranks.total <= len(ranks.rows) else [])
    if rows and left >= 2:
        folded += _table(rows[: left - 1], width, ranks.nodes > 1)
    return [*lines, *folded]


def _fold(view: RunView, width: int, room: int) -> list[Line]:
    """All ranks in a few lines: how many do what, a map of their tones, how their times are spread."""
    lines: list[Line] = []
    for group in view.ranks.groups[: max(1, room // 5)]:
        steps = "" if group.first_step is None else f"step {group.first_step:,}"
        steps += f"–{group.last_step:,}" if group.last_step != group.first_step else ""
        said = " · ".join(part for part in (clean(group.state), clean(group.phase), steps) if part)
        which = f"  ({group.ranks})" if group.ranks and group.count < view.ranks.total else ""
        lines.append([Piece(f" {group.count:>7,}", BOLD), Piece(f"  {said}"), Piece(which, DIM)])
    lines += _map(view, width, _map_rows(room))
    if room >= 12:
        lines += [_spread(spread) for spread in view.ranks.spreads]
    return lines[: max(1, room - 2)] if view.ranks.odd else lines[:room]


def _map(view: RunView, width: int, rows: int) -> list[Line]:
    """The worst tone of each cell; of several cells in one where there is no room for each."""
    wide = width - 2
    unit = _map_unit(view, width, rows)
    cells = view.ranks.cells
    worst = [max(cells[start : start + unit]) for start in range(0, len(cells), unit)]
    lines: list[Line] = []
    for start in range(0, len(worst), wide):
        line: Line = [Piece(" ")]
        for tone in worst[start : start + wide]:
            if len(line) > 1 and line[-1].text[-1] == _CELLS[tone]:
                line[-1] = Piece(line[-1].text + _CELLS[tone], line[-1].style)
            else:
                line.append(Piece(_CELLS[tone], TONES[tone] or DIM))
        lines.append(line)
    return lines


def _map_unit(view: RunView, width: int, rows: int) -> int:
    """How many cells a sign of the map stands for."""
    return max(1, -(-len(view.ranks.cells) // ((width - 2) * rows)))


def _map_rows(room: int) -> int:
    return max(1, min(room // 4, 12))


def _map_legend(view: RunView, width: int, room: int) -> str:
    count = view.ranks.cell_size * _map_unit(view, width, _map_rows(room))
    of = view.ranks.cell_word if count == 1 else f"{count:,} {view.ranks.cell_word}s"
    return f" · a sign is {'a ' if count == 1 else ''}{of}: {_CELLS[WARN]} stands out, {_CELLS[BAD]} bad"


def _spread(spread: Spread) -> Line:
    most = max(spread.bins) or 1
    drawn = "".join(SPARKS[math.ceil(math.sqrt(count / most) * 8)] for count in spread.bins)
    said = f" {seconds_words(spread.low)} … median {seconds_words(spread.median)} … {seconds_words(spread.high)}"
    return [Piece(f" {spread.name:<15} ", DIM), Piece(f"│{drawn}│", "curve"), Piece(said)]


class _Column(NamedTuple):
    """A column of the ranks' table."""

    heading: str
    text: Callable[[RankRow], str]
    is_number: bool = True


def _opt(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)


_COLUMNS = (
    _Column("Rank", lambda row: str(row.rank)),
    _Column("Node", lambda row: clean(row.node), False),
    _Column("State", lambda row: clean(row.state), False),
    _Column("Step", lambda row: _opt(row.step, lambda step: f"{step:.0f}")),
    _Column("A step", lambda row: _opt(row.step_time_s, seconds_words)),
    _Column("Work", lambda row: _opt(row.work_s, seconds_words)),
    _Column("Waits", lambda row: _opt(row.waited_s, seconds_words)),
    _Column("Data", lambda row: _opt(row.data_share, lambda share: f"{share:.0%}")),
    _Column("GC", lambda row: _opt(row.gc_share, lambda share: f"{share:.0%}")),
    _Column("Progress", lambda row: _opt(row.progress_s, duration)),
    _Column("Memory", lambda row: _opt(row.resident, lambda size: bytes_words(int(size)))),
    _Column("Device", lambda row: _opt(row.allocated, lambda size: bytes_words(int(size)))),
    _Column("Phase", lambda row: clean(row.phase), False),
    _Column("", lambda row: clean(row.why), False),
)
_DROPPED = ("Phase", "GC", "Device", "Memory", "A step", "Data", "Waits", "Work", "Node")
"""Where there is no room for all, in this order."""


def _table(rows: Sequence[RankRow], width: int, has_nodes: bool) -> list[Line]:
    """Columns that every row leaves empty are left out, and others as far as the width asks for it."""
    shown = []
    for column in _COLUMNS:
        cells = [column.text(row) for row in rows]
        if any(cells) and (column.heading != "Node" or has_nodes):
            wide = max(cell_len(cell) for cell in [column.heading, *cells])
            shown.append((column, cells, min(wide, 24) if column.heading else wide))
    for heading in _DROPPED:
        # What stands out is said last, and has some room of its own.
        if sum(min(wide, 34 if not column.heading else wide) + 2 for column, _, wide in shown) <= width:
            break
        shown = [one for one in shown if one[0].heading != heading]
    lines: list[Line] = [[Piece(" "), *(_cell(column.heading, column, wide, DIM) for column, _, wide in shown)]]
    for place, row in enumerate(rows):
        style = TONES[row.tone]
        lines.append([Piece(" "), *(_cell(cells[place], column, wide, style) for column, cells, wide in shown)])
    return [[*line[:-1], Piece(line[-1].text.rstrip(), line[-1].style)] for line in lines]


def _cell(text: str, column: _Column, wide: int, style: str) -> Piece:
    cut = text if cell_len(text) <= wide else set_cell_size(text, wide - 1) + "…"
    blanks = " " * (wide - cell_len(cut))
    return Piece(f"{blanks}{cut}  " if column.is_number else f"{cut}{blanks}  ", style)


def _incidents_panel(view: RunView, width: int, room: int) -> list[Line]:
    count = len(view.incidents)
    more = f"{count:,}" + (", the newest first" if count > 1 else "")
    lines = [_rule("Incidents", [Piece(more)], width)]
    if not count:
        return [*lines, [Piece(" none", DIM)]]
    for one in view.incidents[:room]:
        style = RED if one.kind in ("hang", "crash", "node") else YELLOW
        done = f" → {clean(one.action)}" if one.action not in ("", "none") else ""
        lines.append(
            [Piece(f" {clean(one.id)} {clean(one.cause)}{done}  ", style), Piece(clean(one.summary))],
        )
    return lines


def _log_panel(view: RunView, width: int, room: int) -> list[Line]:
    lines = [_rule("Log", [Piece("UTC", DIM)], width)]
    return [*lines, *(log_line(one.time, one.level, one.text) for one in view.log[-room:])]


def log_line(time: str, level: str, text: str) -> Line:
    """One line of the log."""
    return [Piece(f" {clean(time)} ", DIM), Piece(clean(text), LEVELS.get(level, PLAIN))]
