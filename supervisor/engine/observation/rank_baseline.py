"""How ranks usually compare, and who has become slower than that.

What is compared is a rank's own work in a step (engine/observation/step_times.py), as its excess over the median of all
ranks, in shares of the step. Ranks may differ for good reasons, and most slow jobs are slow for those: pipeline stages,
experts, a rank 0 that logs. Such a pattern is there from the first windows on: it is learned, and then each rank is
held against its own place in it. So a rank is suspected in a window

- if its own work is more than the others', by so much that steps take FACTOR times as long for it: measured against
  the rank that would be the slowest without it, not only against the median;
- if that is more than it used to be, by as much, by SPREADS times what ranks' excesses usually move, and by SPREADS
  times what they have all moved now (the median absolute deviation from their usual places);
- if the others do wait, and it waits less;
- if steps do take longer than they used to;
- if few ranks are suspected at once, or only ranks of one node: a pattern that changes for many is uneven work.

Uneven data moves the slowest place from rank to rank, and evens out over a window's steps. What stays slow through
several windows is for engine/detectors/straggler.py to tell.

Places that move slowly (experts' loads) are followed; they are learned anew when all have moved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from guardrun.supervisor.engine.observation.step_times import Share, Window, high, middle

FACTOR = 1.15
LOSS = 1 - 1 / FACTOR
"""Share of the step."""
SPREADS = 5
"""Median absolute deviations, as fail-slow studies have it."""
LEAST_SPREAD = 0.01
EARLY = 5
"""Windows that the usual places are learned from: the median of so many."""
FOLLOWED = 60
"""Windows in which a place that has moved is followed: twenty minutes of 20 s each."""
NOISE_WINDOWS = 10
FEW = 8
"""One in so many ranks may be suspected at once."""
MOVED_WINDOWS = 3


class Suspect(NamedTuple):
    """A rank that is slow in one window."""

    rank: int
    own_s: float
    others_own_s: float
    """Median of the others."""
    loss_s: float
    """What a step would take less without it, at least."""


class RankBaseline(msgspec.Struct, kw_only=True):
    """Ranks' usual places."""

    world_size: int = 0
    learns_from: int = EARLY
    """Windows."""
    early: list[dict[int, float]] = []
    early_steps_s: list[float] = []
    excess: dict[int, float] = {}
    """Per rank; empty while it is being learned."""
    noise: float = 0.0
    """What an excess moves by from one step to the next: over a window's steps it evens out, as their square root."""
    step_s: float = 0.0
    """What a step usually takes."""
    doubted: list[float] = []
    """What moved while ranks were suspected: noise, if that comes to nothing."""
    windows: int = 0
    """That it was learned from, up to NOISE_WINDOWS."""
    moved: int = 0
    """Windows in a row in which most are far from their places, and none is suspected."""

    def spread(self, window: Window) -> float:
        """What excesses may differ by in a window for no reason at all."""
        # Of few ranks and few windows it is hardly known.
        doubt = 1 + 4 / (max(self.windows, 1) * (len(window.shares) - 1))
        return max(LEAST_SPREAD, doubt * self.noise / math.sqrt(window.steps))

    def forget(self, world_size: int) -> None:
        """Other ranks, or other work: learn anew."""
        self.world_size = world_size
        self.early, self.early_steps_s, self.excess, self.doubted = [], [], {}, []
        self.noise, self.step_s, self.windows, self.moved = 0.0, 0.0, 0, 0

    def learn(self, window: Window, frozen: set[int]) -> None:
        """A window has been judged. frozen: ranks whose slowness must not become usual: the suspected and the told."""
        excess = excesses(window)
        if not self.excess:
            self._learn_early(window, excess)
            return
        moves = []
        for rank, now in excess.items():
            usual = self.excess.setdefault(rank, now)
            moves.append(abs(now - usual))
            if rank not in frozen:
                self.excess[rank] = usual + (now - usual) / FOLLOWED
        moved = _upper_middle(moves)
        if frozen:
            self.moved = 0
            self.doubted = [*self.doubted, moved * math.sqrt(window.steps)][-NOISE_WINDOWS:]
            return
        # A suspicion that did not last was noise, too.
        for noise in (*self.doubted, moved * math.sqrt(window.steps)):
            self.windows = min(self.windows + 1, NOISE_WINDOWS)
            self.noise += (noise - self.noise) / NOISE_WINDOWS
        self.doubted = []
        # One window in which all stood still for a while must not hide a slow rank in the next.
        self.step_s += max(-self.step_s, min(window.parts.step_s - self.step_s, self.step_s)) / NOISE_WINDOWS
        self.moved = self.moved + 1 if moved > LOSS / 2 else 0
        if self.moved >= MOVED_WINDOWS:
            self.forget(self.world_size)

    def _learn_early(self, window: Window, excess: dict[int, float]) -> None:
        self.early.append(excess)
        self.early_steps_s.append(window.parts.step_s)
        if len(self.early) < self.learns_from:
            return
        self.excess = {rank: middle([each.get(rank, excess[rank]) for each in self.early]) for rank in excess}
        moves = [abs(each[rank] - usual) for rank, usual in self.excess.items() for each in self.early if rank in each]
        self.noise = _upper_middle(moves) * math.sqrt(window.steps)
        self.step_s = middle(self.early_steps_s)
        self.windows = min(len(self.early), NOISE_WINDOWS)
        self.early, self.early_steps_s = [], []


def excesses(window: Window) -> dict[int, float]:
    """What each rank's own work exceeds the median rank's by, in shares of the step."""
    usual_s = middle([share.own_s for share in window.shares.values()])
    step_s = window.parts.step_s
    return {rank: (share.own_s - usual_s) / step_s for rank, share in window.shares.items()}


def suspects(window: Window, usual: RankBaseline, nodes: Mapping[int, str]) -> list[Suspect]:
    """Ranks that are slower than they used to be, and hold the others up. nodes: per rank."""
    if not usual.excess or len(window.shares) < 2:
        return []
    excess = excesses(window)
    moves = {rank: now - usual.excess[rank] for rank, now in excess.items() if rank in usual.excess}
    spread = max(usual.spread(window), middle([abs(move) for move in moves.values()]))
    least = max(LOSS, SPREADS * spread)
    found = holders(window, [rank for rank, move in moves.items() if move >= least and excess[rank] >= LOSS], nodes)
    if not found:
        return []
    loss_s = min(each.loss_s for each in found)
    if window.parts.step_s < usual.step_s * (1 + (FACTOR - 1) / 2) or loss_s < LOSS * window.parts.step_s:
        return []
    return found


def steady(usual: RankBaseline, window: Window, nodes: Mapping[int, str]) -> list[Suspect]:
    """Ranks that have been slower than all others, alike, since the first windows; told by their usual places."""
    if len(window.shares) < 2 or not usual.excess:
        return []
    values = list(usual.excess.values())
    middle_of = middle(values)
    spread = max(usual.spread(window), middle([abs(value - middle_of) for value in values]))
    limit = max(LOSS, SPREADS * spread)
    slow = [rank for rank, value in usual.excess.items() if value - middle_of >= limit and rank in window.shares]
    found = holders(window, slow, nodes)
    return [] if any(each.loss_s < LOSS * window.parts.step_s for each in found) else found


def holders(window: Window, ranks: list[int], nodes: Mapping[int, str]) -> list[Suspect]:
    """Those of these ranks for which the others wait; none if they are too many to be anybody's fault."""
    chosen = set(ranks)
    others = [share for rank, share in window.shares.items() if rank not in chosen]
    if not ranks or not others or not _are_few(ranks, list(window.shares), nodes):
        return []
    others_own_s, most_s = middle([share.own_s for share in others]), high([share.own_s for share in others])
    waited_s = middle([share.waited_s for share in others])

    def holds(share: Share) -> bool:
        return waited_s - share.waited_s >= (share.own_s - others_own_s) / 2

    return [
        Suspect(rank, share.own_s, others_own_s, share.own_s - most_s)
        for rank in sorted(ranks)
        if holds(share := window.shares[rank])
    ]


def _are_few(ranks: list[int], known: list[int], nodes: Mapping[int, str]) -> bool:
    if len(ranks) <= max(1, len(known) // FEW):
        return True
    where = {nodes.get(rank, "") for rank in ranks}
    return len(where) == 1 and len({nodes.get(rank, "") for rank in known}) > 1


def _upper_middle(values: list[float]) -> float:
    """The median; of an even number the upper one, so that of two the one that moves counts."""
    return sorted(values)[len(values) // 2] if values else 0.0
