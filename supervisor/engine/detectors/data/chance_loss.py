"""A loss that stands where guessing would have it, from the beginning: a note, `chance_loss`.

Who guesses among k classes has a cross entropy of ln(k). So a loss that has been near such a value since the first
steps, in every report of LEAST_STEPS steps, is one of a model that does not learn. A loss that comes down to such a
value is none: a perplexity of 10 is a good one. So a training is judged from its first step on, or not at all, and
once a rank's loss has been elsewhere, never again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict

TOPIC = "chance_loss"
CLASSES = (*range(2, 11), 100, 1000)
"""Beyond ten these lie so close to each other that any loss is near one: but for two that are common."""
NEAR = 0.005
"""A share of ln(k)."""
BEGINS_BY = 50
"""The first step of a training that is seen from its beginning."""
SETTLES = 200
"""Steps in which the first weights may be worse than guessing."""
LEAST_STEPS = 2000
LEAST_REPORTS = 20


class Standing(msgspec.Struct, kw_only=True):
    """Of one rank."""

    classes: int = 0
    """k; 0: not known yet."""
    lowest: float | None = None
    """Before that; None: nothing was told before."""
    since: int = 0
    """A step; …"""
    last: int = 0
    """… and the last one that was near."""
    reports: int = 0
    highest_away: float = 0.0
    """From ln(k)."""


class ChanceLoss(msgspec.Struct, kw_only=True):
    """Whether a model learns at all."""

    ranks: dict[int, Standing] = {}
    is_out: bool = False
    """Nothing is to be said any more in this attempt: a rank's loss was elsewhere, or a checkpoint was loaded."""
    is_told: bool = False

    def begin_attempt(self) -> None:
        """Judge it anew, if it begins with the training."""
        self.ranks, self.is_out = {}, self.is_told

    def judge(self, reports: Sequence[tuple[int, ev.TrainingMetrics]], attempt: AttemptView) -> Sequence[Verdict]:
        """Take reports of ranks in."""
        for rank, metrics in reports:
            if self.is_out:
                return ()
            if metrics.loss is not None or metrics.nonfinite:
                self.is_out = not self._stands(rank, metrics, attempt)
        if self.is_out or not all(_is_long(one) for one in self.ranks.values()) or not self.ranks:
            return ()
        self.is_told = self.is_out = True
        return [_remark(list(self.ranks.values()), reports)]

    def _stands(self, rank: int, metrics: ev.TrainingMetrics, attempt: AttemptView) -> bool:
        """Whether it may still be one that stands there."""
        loss, known = metrics.loss, self.ranks.get(rank)
        if known is None:
            if attempt.resumed_from is not None or metrics.first > BEGINS_BY:
                return False
            known = self.ranks[rank] = Standing()
        if loss is None or loss <= 0 or metrics.nonfinite:
            return False
        if not known.classes:
            known.lowest = loss if known.lowest is None else min(known.lowest, loss)
            if metrics.first <= SETTLES:
                return True
            known.classes = min(CLASSES, key=lambda k: abs(loss - math.log(k)))
            known.since = metrics.first
            if known.lowest < math.log(known.classes) * (1 - NEAR):
                return False
        away = abs(loss - math.log(known.classes))
        known.last, known.reports, known.highest_away = metrics.last, known.reports + 1, max(known.highest_away, away)
        return away <= NEAR * math.log(known.classes)


def _is_long(one: Standing) -> bool:
    return one.classes > 0 and one.last - one.since >= LEAST_STEPS and one.reports >= LEAST_REPORTS


def _remark(standing: list[Standing], reports: Sequence[tuple[int, ev.TrainingMetrics]]) -> Remark:
    one = standing[0]
    first, last = max(known.since for known in standing), min(known.last for known in standing)
    value = math.log(one.classes)
    evidence: dict[str, Any] = {
        "classes": one.classes,
        "chance_loss": round(value, 4),
        "farthest": round(max(known.highest_away for known in standing), 5),
        "steps": [first, last],
        "ranks": len(standing),
        "learning_rate": reports[-1][1].learning_rate,
    }
    text = (
        f"the loss has stood at {value:.3f} from step {first} to {last}: that is ln({one.classes}), what guessing "
        f"among {one.classes} classes has, so the model seems not to learn."
    )
    return Remark(text=text, topic=TOPIC, level="warn", evidence=evidence)
