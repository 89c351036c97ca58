"""Ranks whose gradients are averaged, and that train on the same samples: a note, `same_samples`.

Two signs are needed. The first batches of a pass have the same indices in the same order; and single losses, as each
rank computes them, are the same bit for bit at many steps. Indices alone say little: each rank may have a dataset of
its own, of which it takes the same places. Nor do losses: they may be computed of what all ranks gathered.

Ranks that rightly share samples (of a tensor or pipeline parallel model) are in no group of those whose gradients are
averaged, and are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.frames import all_ranks_text, rank_list, ranks_text

TOPIC = "same_samples"
LEAST_BATCHES = 8
LEAST_DISTINCT = 32
"""Samples. Who trains on fewer may mean to (one batch, again and again), or has fewer than there are ranks."""
LEAST_LOSSES = 12
"""Steps of which all of these ranks have told their loss."""
LEAST_VALUES = 6
"""Different ones among these: a loss that stands still is the same for other reasons."""
MAX_GROUPS = 4096
MAX_LOSSES = 32
"""Of a rank."""


class Group(msgspec.Struct, kw_only=True):
    """Ranks whose gradients are averaged, and a loader that each of them has: its first pass."""

    members: int
    orders: dict[int, str] = {}
    """By rank; empty: too little to compare."""
    batches: int = 0
    distinct: int = 0
    suspects: list[list[int]] | None = None
    """Ranks with the same order; None: not all have told theirs."""


class SameSamples(msgspec.Struct, kw_only=True):
    """Whether ranks do each other's work over again."""

    groups: dict[str, Group] = {}
    losses: dict[int, dict[int, float]] = {}
    """By rank and step."""
    is_told: bool = False

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.groups, self.losses = {}, {}

    def judge(
        self,
        orders: Sequence[tuple[int, ev.SampleOrder]],
        losses: Sequence[tuple[int, ev.StepLoss]],
        attempt: AttemptView,
    ) -> Sequence[Verdict]:
        """Take in what ranks tell of their loaders and losses."""
        if self.is_told:
            return ()
        for rank, order in orders:
            if order.turn == 0 and order.group and rank in attempt.ranks:
                self._note(rank, order)
        if losses and self._has_pending():
            for rank, loss in losses:
                known = self.losses.setdefault(rank, {})
                known[loss.step] = loss.loss
                if len(known) > MAX_LOSSES:
                    del known[min(known)]
        for group in self.groups.values():
            if group.suspects and (verdict := self._compare(group, group.suspects, attempt)) is not None:
                self.is_told = True
                self.begin_attempt()
                return [verdict]
        if self.losses and not self._has_pending():
            self.losses = {}
        return ()

    def _has_pending(self) -> bool:
        """Whether losses can still decide anything."""
        return any(group.suspects is None or group.suspects for group in self.groups.values())

    def _note(self, rank: int, order: ev.SampleOrder) -> None:
        key = f"{order.group}/{order.loader}"
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= MAX_GROUPS:
                return
            group = self.groups[key] = Group(members=order.members)
        if group.suspects is not None:
            return
        is_enough = order.batches >= LEAST_BATCHES and order.distinct >= LEAST_DISTINCT
        group.orders[rank] = f"{order.batches}/{order.order}" if is_enough else ""
        if len(group.orders) < group.members:
            return
        by_order: dict[str, list[int]] = {}
        for one, text in group.orders.items():
            by_order.setdefault(text, []).append(one)
        group.suspects = [sorted(ranks) for text, ranks in by_order.items() if text and len(ranks) > 1]
        group.batches, group.distinct = order.batches, order.distinct
        group.orders = {}

    def _compare(self, group: Group, suspects: list[list[int]], attempt: AttemptView) -> Remark | None:
        """What can be said of them; those of which it is known by now that their losses differ are forgotten."""
        kept = []
        for ranks in suspects:
            told = [self.losses.get(rank, {}) for rank in ranks]
            steps = sorted(set(told[0]).intersection(*told[1:]))
            if len(steps) < LEAST_LOSSES:
                kept.append(ranks)
                continue
            alike: dict[tuple[float, ...], list[int]] = {}
            for rank, known in zip(ranks, told, strict=True):
                alike.setdefault(tuple(known[step] for step in steps), []).append(rank)
            for values, same in alike.items():
                if len(same) > 1 and len(set(values)) >= LEAST_VALUES:
                    return _remark(group, same, steps, attempt)
        group.suspects = kept
        return None


def _remark(group: Group, ranks: list[int], steps: list[int], attempt: AttemptView) -> Remark:
    whom = all_ranks_text(len(ranks)) if len(ranks) == len(attempt.ranks) else ranks_text(ranks)
    evidence: dict[str, Any] = {
        "ranks": rank_list(ranks),
        "averaged_ranks": group.members,
        "batches": group.batches,
        "samples": group.distinct,
        "loss_steps": [steps[0], steps[-1]],
        "equal_losses": len(steps),
    }
    text = (
        f"{whom} train on the same samples: the first {group.batches} batches have the same indices in the same order, "
        f"and the losses at {len(steps)} steps ({steps[0]} to {steps[-1]}) are equal bit for bit."
    )
    return Remark(text=text, level="warn", topic=TOPIC, evidence=evidence)
