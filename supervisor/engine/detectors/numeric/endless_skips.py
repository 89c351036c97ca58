"""A GradScaler, or guardrun itself, that leaves out step after step: `numeric`, cause `nan_loss`.

A GradScaler leaves steps out whose gradients overflow, and halves its scale each time: some at the start, and one in
every few thousand steps. Where nearly all of SKIPS steps are left out, no scale helps, and gradients are not finite for
another reason: the parameters stand still from then on. So they do where guardrun leaves out step after step whose
gradients are not finite (`[guards] numeric = "skip"`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Verdict
from guardrun.supervisor.engine.observation.frames import all_ranks_text, rank_list, ranks_text

CAUSE = "nan_loss"
SKIPS = 50
"""A scale of 65,536, torch's first, is 6e-11 after so many."""
SHARE = 5 / 6
"""Of the steps in which they come."""
WAIT_S = 5.0
"""For other ranks, which report every four seconds."""
MOST_REPORTED = 2
"""Incidents in a run."""
MAX_CULPRITS = 64
CONFIDENCE = 0.85


class Skips(msgspec.Struct, array_like=True):
    """A rank's steps from one moment on."""

    step: int
    skipped: int
    """Steps that were left out before."""
    count: int = 0
    """That were left out since then; …"""
    guarded: int = 0
    """… of these: by guardrun."""
    left_out: int = 0
    """Steps that guardrun had left out before."""

    def add(self, metrics: ev.TrainingMetrics) -> bool | None:
        """Take a report in, and say whether nearly all steps were left out; None: there are too few.

        Where they were not, counting begins anew.
        """
        self.guarded = metrics.left_out - self.left_out
        self.count, steps = metrics.skipped - self.skipped + self.guarded, metrics.last - self.step
        # A step that is left out need not be counted as one.
        is_most = self.count >= SHARE * steps
        if self.count >= SKIPS and is_most:
            return True
        if steps >= SKIPS / SHARE or (self.count >= SKIPS and not is_most):
            self.step, self.skipped, self.count = metrics.last, metrics.skipped, 0
            self.left_out, self.guarded = metrics.left_out, 0
            return False
        return None


class EndlessSkips(msgspec.Struct, kw_only=True):
    """Whether a GradScaler ever finds a scale."""

    ranks: dict[int, Skips] = {}
    endless: dict[int, Skips] = {}
    """Those of ranks that leave nearly all of their steps out."""
    since_s: float = 0.0
    """When the first of these was seen."""
    key: str = ""
    """Of the incident that is not over."""
    count: int = 0
    """Incidents of this run."""

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.ranks, self.endless, self.key = {}, {}, ""

    def judge(
        self, reports: Sequence[tuple[int, ev.TrainingMetrics]], attempt: AttemptView, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        """Count what is left out. reports: of ranks."""
        for rank, metrics in reports:
            self._count(rank, metrics, now_s)
        if self.key and not self.endless:
            key, self.key = self.key, ""
            return [Over(key=key, text="no more steps than usual are left out")]
        if not self.endless or self.key or now_s - self.since_s < WAIT_S or self.count >= MOST_REPORTED:
            return ()
        if _is_explained(view, attempt.number):
            return ()
        return [self._detected(attempt)]

    def _count(self, rank: int, metrics: ev.TrainingMetrics, now_s: float) -> None:
        known = self.ranks.get(rank)
        if known is None:
            # Of the first report all may have been left out.
            known = self.ranks[rank] = Skips(min(metrics.first - 1, metrics.last), 0)
        is_endless = known.add(metrics)
        if is_endless:
            if not self.endless:
                self.since_s = now_s
            self.endless[rank] = known
        elif is_endless is False:
            self.endless.pop(rank, None)

    def _detected(self, attempt: AttemptView) -> Detected:
        self.count += 1
        self.key = f"endless_skips/{self.count}"
        ranks = sorted(self.endless)
        first = min(self.endless.values(), key=lambda skips: skips.step)
        is_all = len(ranks) == len(self.ranks)
        is_guarded = 2 * first.guarded > first.count
        who, whose = ("guardrun", "") if is_guarded else ("The GradScaler", " at any scale")
        subject = all_ranks_text(len(ranks)) if is_all and len(ranks) > 1 else ranks_text(ranks)
        return Detected(
            key=self.key,
            kind="numeric",
            cause=CAUSE,
            confidence=CONFIDENCE,
            summary=(
                f"{who} has left out {first.count} steps since step {first.step} on {subject}, and goes on: "
                f"gradients are not finite{whose}."
            ),
            culprits=[] if is_all and len(attempt.ranks) > 1 else ranks[:MAX_CULPRITS],
            onset_s=self.since_s,
            step=first.step,
            evidence={
                "ranks": rank_list(ranks),
                "reporting": rank_list(sorted(self.ranks)),
                "skipped": first.count,
                "since_step": first.step,
                "left_out": True,
                **({"by_guardrun": first.guarded} if is_guarded else {}),
            },
        )


def _is_explained(view: RunView, attempt: int) -> bool:
    """Whether it is told already that the loss is NaN, which no scale mends."""
    return any(
        incident.cause == CAUSE and incident.attempt == attempt and incident.recovered_s is None
        for incident in view.incidents.values()
    )
