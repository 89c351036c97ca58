"""Which ranks share a strip of the timeline: past MAX_EACH of them, those that did the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from guardrun.supervisor.report.timeline.timeline import RankRow, View

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
