"""Is the data what one thinks it is? Five parts answer, each once a run, with a note: nothing is an incident, or acts.

Two are here: a sampler that is to shuffle and gives the same order in each epoch (`same_order`), and ranks whose
loaders are not equally long (`uneven_loaders`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.detectors.data.chance_loss import ChanceLoss
from guardrun.supervisor.engine.detectors.data.dead_modules import DeadModules
from guardrun.supervisor.engine.detectors.data.same_samples import (
    LEAST_BATCHES,
    LEAST_DISTINCT,
    MAX_GROUPS,
    SameSamples,
)
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.frames import rank_list, ranks_text

ORDERED = 3
"""Passes in a row: a second one may be a trial of the first."""
MAX_RUNS = 4096
MOST_UNEVEN = 0.1
"""A share of the longest. Parts of one dataset are nearly equal; others are different data, by intention."""


class Run(msgspec.Struct, kw_only=True):
    """Passes in a row of one rank over a loader, in the same order."""

    order: str
    epoch: int
    turn: int
    count: int = 1


class SameOrder(msgspec.Struct, kw_only=True):
    """Whether what is to shuffle does it once only."""

    runs: dict[str, Run] = {}
    """`RANK/LOADER`."""
    is_told: bool = False

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.runs = {}

    def judge(self, orders: Sequence[tuple[int, ev.SampleOrder]]) -> Sequence[Verdict]:
        """Take in what ranks tell of their loaders."""
        for rank, order in orders:
            if self.is_told:
                return ()
            if not order.shuffles or order.batches < LEAST_BATCHES or order.distinct < LEAST_DISTINCT:
                continue
            key, text = f"{rank}/{order.loader}", f"{order.batches}/{order.order}"
            run = self.runs.get(key)
            if run is not None and (run.order, run.epoch, run.turn + 1) == (text, order.epoch, order.turn):
                run.turn, run.count = order.turn, run.count + 1
                if run.count >= ORDERED:
                    self.is_told, self.runs = True, {}
                    return [_same_order(rank, order, run)]
            elif run is not None or len(self.runs) < MAX_RUNS:
                self.runs[key] = Run(order=text, epoch=order.epoch, turn=order.turn)
        return ()


def _same_order(rank: int, order: ev.SampleOrder, run: Run) -> Remark:
    evidence: dict[str, Any] = {
        "rank": rank,
        "epochs": run.count,
        "sampler_epoch": order.epoch,
        "batches": order.batches,
        "samples": order.distinct,
        "step": order.step,
    }
    text = (
        f"samples come in the same order in every epoch: on rank {rank} the first {order.batches} batches of "
        f"{run.count} epochs in a row were the same, and the DistributedSampler, which is to shuffle, has been at "
        f"epoch {order.epoch} all the while."
    )
    return Remark(text=text, level="warn", topic="same_order", evidence=evidence)


class Lengths(msgspec.Struct, kw_only=True):
    """Of one loader, on ranks whose gradients are averaged."""

    members: int
    batches: dict[int, int] = {}
    """By rank; -1: not known, or it does not matter."""


class UnevenLoaders(msgspec.Struct, kw_only=True):
    """Whether some ranks run out of batches before others do."""

    groups: dict[str, Lengths] = {}
    is_told: bool = False

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.groups = {}

    def judge(self, orders: Sequence[tuple[int, ev.SampleOrder]]) -> Sequence[Verdict]:
        """Take in what ranks tell of their loaders."""
        for rank, order in orders:
            if self.is_told:
                return ()
            if order.turn or not order.group:
                continue
            key = f"{order.group}/{order.loader}"
            known = self.groups.get(key)
            if known is None:
                if len(self.groups) >= MAX_GROUPS:
                    continue
                known = self.groups[key] = Lengths(members=order.members)
            known.batches[rank] = -1 if order.is_joined else order.length
            if len(known.batches) == known.members and (verdict := _uneven(known)) is not None:
                self.is_told, self.groups = True, {}
                return [verdict]
        return ()


def _uneven(known: Lengths) -> Remark | None:
    least, most = min(known.batches.values()), max(known.batches.values())
    if least <= 0 or least == most or most - least > max(1, MOST_UNEVEN * most):
        return None
    short = sorted(rank for rank, length in known.batches.items() if length == least)
    long = sorted(rank for rank, length in known.batches.items() if length == most)
    evidence = {
        "shortest": least,
        "longest": most,
        "ranks_shortest": rank_list(short),
        "ranks_longest": rank_list(long),
    }
    text = (
        f"training loaders are not equally long: an epoch has {least} batches on {ranks_text(short)}, and {most} on "
        f"{ranks_text(long)}. Where the script goes by epochs, those that have more wait in vain for the others."
    )
    return Remark(text=text, topic="uneven_loaders", level="warn", evidence=evidence)


class TrainingData(msgspec.Struct, kw_only=True):
    """Whether the data is what one thinks."""

    same_samples: SameSamples = msgspec.field(default_factory=SameSamples)
    same_order: SameOrder = msgspec.field(default_factory=SameOrder)
    uneven_loaders: UnevenLoaders = msgspec.field(default_factory=UnevenLoaders)
    chance_loss: ChanceLoss = msgspec.field(default_factory=ChanceLoss)
    dead_modules: DeadModules = msgspec.field(default_factory=DeadModules)

    def begin_attempt(self) -> None:
        """Judge it by itself."""
        for part in (self.same_samples, self.same_order, self.uneven_loaders, self.chance_loss):
            part.begin_attempt()

    def on_loaded(self) -> None:
        """The script has loaded a checkpoint: this training is not seen from its beginning."""
        self.chance_loss.is_out = True

    def judge(self, told: Sequence[ev.RankReport], attempt: AttemptView) -> Sequence[Verdict]:
        """Take in reports of ranks that tell of their loaders, or single losses."""
        orders = [(report.global_rank, order) for report in told for order in report.samples]
        losses = [(report.global_rank, loss) for report in told for loss in report.losses]
        return [
            *self.same_samples.judge(orders, losses, attempt),
            *self.same_order.judge(orders),
            *self.uneven_loaders.judge(orders),
        ]
