"""Steps that guardrun left out in the ranks (`[guards] numeric = "skip"`): remarks, and no incident.

Whose gradients were not finite at such a step is known once all ranks that report have reported it. Those that go on
without end are a `nan_loss` (endless_skips.py): parameters stand still.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.frames import all_ranks_text, ranks_text
from guardrun.supervisor.engine.observation.metric_window import BAD_GRADIENTS, FAR, LEFT_OUT, LOSS_BAD

WAIT_S = 8.0
"""For ranks that have not reported the step yet; those in order do so every four seconds."""
MOST_REMARKS = 3
"""In a run; …"""
APART_S = 60.0
"""… and from one to the next. Those between are counted."""


class LeftOutSteps(msgspec.Struct, kw_only=True):
    """Which step it was, and whose gradients."""

    last: dict[int, int] = {}
    """Ranks that report → the last step that they have."""
    step: int = 0
    """The one that is to be told; 0: none."""
    since_s: float = 0.0
    """When it was first heard of."""
    ranks: list[int] = []
    """That have left it out."""
    bad: list[int] = []
    """Of these: whose own gradients were not finite."""
    batches: dict[int, int] = {}
    """Of these: whose loss was not → its batch."""
    norm: float | None = None
    """Of all of them, where it was far above those before."""
    told: int = 0
    """Steps up to here are not told any more; …"""
    told_s: float = 0.0
    """… since when."""
    count: int = 0
    """Left out in this attempt so far, on the rank with most of them."""
    remarks: int = 0
    """Of this run."""

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.last, self.step, self.told, self.count = {}, 0, 0, 0

    def judge(self, reports: Sequence[tuple[int, ev.TrainingMetrics]], now_s: float) -> Sequence[Verdict]:
        """Take reports of ranks in, and say which step was left out once it is known whose gradients were at fault."""
        for rank, metrics in reports:
            self.last[rank], self.count = metrics.last, max(self.count, metrics.left_out)
            for step in metrics.odd:
                if step.flags & LEFT_OUT and step.step > self.told:
                    self._note(rank, step, now_s)
        if not self.step or (now_s - self.since_s < WAIT_S and any(last < self.step for last in self.last.values())):
            return ()
        text, self.told, self.step = self._text(), max(self.last.values()), 0
        if self.remarks >= MOST_REMARKS or (self.remarks and now_s - self.told_s < APART_S):
            return ()
        self.remarks += 1
        self.told_s = now_s
        return [Remark(text=text, level="warn")]

    def _note(self, rank: int, step: ev.OddStep, now_s: float) -> None:
        if not self.step or step.step < self.step:
            self.since_s = self.since_s if self.step else now_s
            self.step, self.ranks, self.bad, self.batches, self.norm = step.step, [], [], {}, None
        if step.step == self.step:
            self.ranks.append(rank)
            if step.flags & BAD_GRADIENTS:
                self.bad.append(rank)
            if step.flags & FAR:
                self.norm = step.grad_norm
            if step.flags & LOSS_BAD:
                self.batches[rank] = step.batch

    def _text(self) -> str:
        whom, bad, losses = (
            all_ranks_text(len(ranks)) if len(ranks) == len(self.last) > 1 else ranks_text(sorted(ranks))
            for ranks in (self.ranks, self.bad, self.batches)
        )
        text = f'step {self.step} was left out on {whom} ([guards] numeric = "skip"): '
        if self.batches:
            batches = set(self.batches.values()) - {0}
            text += (
                f"the loss of {losses}{f' (batch {batches.pop()})' if len(batches) == 1 else ''} was not finite, and "
            )
        if self.norm is not None and not self.bad:
            text += f"the gradient norm, {self.norm:.4g}, was far above those before"
        else:
            text += f"gradients were not finite on {bad}" if self.bad else "gradients were not finite"
        if len(self.ranks) < len(self.last):
            text += "; others are not known to have left it out"
        if self.count > 1:
            text += f"; {self.count} steps of this attempt so far"
        if self.remarks + 1 == MOST_REMARKS:
            text += "; further ones are only counted"
        return text
