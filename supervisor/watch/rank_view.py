"""All ranks of a run, folded: those that stand out one by one, and all of them as groups, a map and spreads. Pure.

Every list has its bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec

from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.watch.rank_oddness import FINE, Odd, judge, typical_of
from guardrun.supervisor.watch.run_series import RunSeries
from guardrun.supervisor.watch.run_status import RankStatus, RunStatus

MAX_ROWS = 64
"""Ranks that are shown one by one: all where there are no more, else those that stand out."""
MAX_CELLS = 2048
MAX_GROUPS = 8
BINS = 24


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is shown by itself."""

    rank: int
    node: str
    state: str
    """In words."""
    phase: str
    step: int | None
    step_time_s: float | None
    work_s: float | None
    """Of a step: its own work, …"""
    waited_s: float | None
    """… and waiting for others."""
    data_share: float | None
    gc_share: float | None
    progress_s: float | None
    resident: int | None
    allocated: int | None
    tone: int
    """As rank_oddness.py has it: 0 is like the others, 3 is bad."""
    why: str


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in the same state and phase."""

    count: int
    state: str
    phase: str
    first_step: int | None
    last_step: int | None
    ranks: str
    """`0-6,8`; empty where that would be long."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """How a number is spread over ranks, in seconds; bins: counts between low and high, evenly wide."""

    name: str
    low: float
    median: float
    high: float
    bins: list[int]


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks."""

    total: int
    nodes: int
    odd: int
    """How many stand out."""
    rows: list[RankRow]
    """Those that stand out most come first."""
    cells: list[int]
    """The worst tone of a few ranks each, in their order."""
    cell_word: str
    """What cells are made of: `rank` or `node`, …"""
    cell_size: int
    """… and of how many one is."""
    groups: list[Group]
    spreads: list[Spread]


def fold_ranks(status: RunStatus, series: RunSeries) -> Ranks:
    """What is shown of them."""
    ranks = sorted(status.ranks, key=lambda rank: rank.global_rank)
    culprits = culprits_of(status)
    typical = typical_of(ranks, series.steps, culprits)
    judged = [(rank, judge(rank, series.steps.get(rank.global_rank), typical)) for rank in ranks]
    order = sorted(judged, key=lambda one: (-one[1].tone, -one[1].score, one[0].global_rank))
    nodes = len({rank.node for rank in ranks})
    cells, word, unit = _cells(judged, nodes)
    return Ranks(
        total=len(ranks),
        nodes=nodes,
        odd=sum(odd.tone != FINE for _, odd in judged),
        rows=[_row(rank, odd, series) for rank, odd in order[:MAX_ROWS]],
        cells=cells,
        cell_word=word,
        cell_size=unit,
        groups=_groups(ranks),
        spreads=_spreads(ranks, series),
    )


def culprits_of(status: RunStatus) -> frozenset[int]:
    """Who holds the run up, as the engine has it: by the stall, or by a hang that nobody has ended."""
    who = (status.stall or {}).get("who")
    named = [one.get("rank") for one in who if isinstance(one, dict)] if isinstance(who, list) else []
    last = status.incidents[-1] if status.incidents else None
    if not named and last is not None and last.kind == "hang" and status.state in ("suspicious", "stalled", "held"):
        named = [culprit.rank for culprit in last.culprits]
    return frozenset(rank for rank in named if isinstance(rank, int))


def _row(rank: RankStatus, odd: Odd, series: RunSeries) -> RankRow:
    steps, memory = series.steps.get(rank.global_rank), series.memory.get(rank.global_rank)
    return RankRow(
        rank=rank.global_rank,
        node=rank.node,
        state=rank.words(),
        phase=rank.phase or "",
        step=rank.step,
        step_time_s=steps.step_s if rank.step_time_s is None and steps else rank.step_time_s,
        work_s=steps.work_s if steps else None,
        waited_s=steps.waited_s if steps else None,
        data_share=rank.data_share,
        gc_share=rank.gc_share,
        progress_s=rank.last_progress_s,
        resident=memory.resident if memory else None,
        allocated=memory.allocated if memory else None,
        tone=odd.tone,
        why=odd.why,
    )


def _cells(judged: Sequence[tuple[RankStatus, Odd]], nodes: int) -> tuple[list[int], str, int]:
    """The worst tone of each rank; of each node where ranks are many. (cells, word, how many are a cell)."""
    tones, word = [odd.tone for _, odd in judged], "rank"
    if nodes > 1 and len(tones) > 4 * MAX_ROWS:
        worst: dict[str, int] = {}
        for rank, odd in judged:
            worst[rank.node] = max(worst.get(rank.node, FINE), odd.tone)
        tones, word = list(worst.values()), "node"
    size = max(1, -(-len(tones) // MAX_CELLS))
    return [max(tones[start : start + size]) for start in range(0, len(tones), size)], word, size


def _groups(ranks: Sequence[RankStatus]) -> list[Group]:
    """The largest first; what is beyond the bound is left to the rows of those that stand out."""
    found: dict[tuple[str, str], list[RankStatus]] = {}
    for rank in ranks:
        found.setdefault((rank.words(), rank.phase or ""), []).append(rank)
    groups = []
    for (state, phase), members in sorted(found.items(), key=lambda one: -len(one[1]))[:MAX_GROUPS]:
        steps = [rank.step for rank in members if rank.step is not None]
        text = rank_list([rank.global_rank for rank in members])
        groups.append(
            Group(
                count=len(members),
                state=state,
                phase=phase,
                first_step=min(steps, default=None),
                last_step=max(steps, default=None),
                ranks=text if len(text) <= MAX_ROWS else "",
            )
        )
    return groups


def _spreads(ranks: Sequence[RankStatus], series: RunSeries) -> list[Spread]:
    rows = [series.steps[rank.global_rank] for rank in ranks if rank.global_rank in series.steps]
    numbers = (
        ("work a step", [one.work_s for one in rows]),
        ("waiting a step", [one.waited_s for one in rows]),
        ("since progress", [rank.last_progress_s for rank in ranks if rank.exitcode is None]),
    )
    return [spread for name, values in numbers if (spread := _spread(name, values)) is not None]


def _spread(name: str, values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    bins = [0] * BINS
    wide = (high - low) / BINS
    for value in known:
        bins[min(int((value - low) / wide), BINS - 1) if wide > 0 else 0] += 1
    return Spread(name=name, low=low, median=median(known), high=high, bins=bins)
