"""What is remembered of values that are not finite, and who began it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Incident
from guardrun.supervisor.engine.observation.frames import rank_list
from guardrun.supervisor.engine.observation.metric_window import (
    GRAD_NORM,
    LOSS,
    LOSS_BAD,
    LOSS_NAN,
    NORM_BAD,
    NORM_NAN,
    SKIPPED,
)

CAUSE = "nan_loss"
LASTS = 2
"""Steps of a rank that are not finite."""
LASTS_KEPT = 50
"""Those whose gradients alone are so, with losses that stay finite: had such a step been taken, no loss would be finite
after it. Somebody leaves them out, as loss scalers of other makes than torch's do at the start."""
MAX_SHOWN = 8
MAX_CULPRITS = 64
MAX_INDICES = 64
"""Of a batch."""
PRECEDED_BY = ("loss_spike", "grad_explosion")


class RankMetrics(msgspec.Struct, array_like=True):
    """What a rank has reported in this attempt."""

    first: int
    """Step of its first values."""
    last: int = 0
    loss: float | None = None
    """Of its last report that had a finite one."""
    grad_norm: float | None = None
    learning_rate: float | None = None
    nonfinite: int = 0
    kinds: int = 0
    """Bits LOSS and GRAD_NORM: which of the two it reports."""
    spike: ev.OddStep | None = None
    """The last odd step that was finite."""

    def note(self, metrics: ev.TrainingMetrics) -> None:
        """Take a report in."""
        self.last, self.nonfinite = metrics.last, metrics.nonfinite
        if metrics.loss is not None:
            self.loss, self.kinds = metrics.loss, self.kinds | LOSS
        if metrics.grad_norm is not None:
            self.grad_norm, self.kinds = metrics.grad_norm, self.kinds | GRAD_NORM
        if metrics.learning_rate is not None:
            self.learning_rate = metrics.learning_rate
        for step in metrics.odd:
            self.kinds |= step.flags & (LOSS | GRAD_NORM)
            if step.loss_sigmas or step.norm_sigmas:
                self.spike = step


class Run(msgspec.Struct, kw_only=True):
    """A rank's steps that are not finite, one after the other."""

    step: int
    """The first."""
    flags: int
    """Of that."""
    batch: int
    count: int = 0
    kinds: int = 0
    """Bits LOSS and GRAD_NORM: which of the two was not finite."""
    is_kept: bool = False
    """Gradients alone are so, and losses stay finite: parameters are as they were."""
    is_over: bool = False
    is_lasting: bool = False
    """It is more than steps that are overcome: all of the newest report is so, and LASTS steps are, at least."""
    apart: int = 0
    """Steps between two of them: values need not be seen in each step; 0: not known yet."""
    last: int = 0
    """The last one that a report has listed."""
    is_left_out: bool = True
    """A GradScaler has left all of them out: no parameter has changed."""
    loss: float | None = None
    """The last finite one before; a report's median."""
    grad_norm: float | None = None
    learning_rate: float | None = None
    spike: ev.OddStep | None = None
    """The last step before that was far above the usual."""

    @classmethod
    def of(cls, first: ev.OddStep, known: RankMetrics, metrics: ev.TrainingMetrics) -> Run:
        """Begin one. known: the rank's reports before; metrics: the one that has the step."""
        has_before = metrics.first < first.step
        spikes = [step for step in metrics.odd if step.step < first.step and (step.loss_sigmas or step.norm_sigmas)]
        return cls(
            step=first.step,
            flags=first.flags,
            batch=first.batch,
            loss=metrics.loss if has_before and metrics.loss is not None else known.loss,
            grad_norm=metrics.grad_norm if has_before and metrics.grad_norm is not None else known.grad_norm,
            learning_rate=known.learning_rate if metrics.learning_rate is None else metrics.learning_rate,
            spike=spikes[-1] if spikes else known.spike,
        )

    def add(self, bad: list[ev.OddStep], metrics: ev.TrainingMetrics, count: int) -> None:
        """Go on with it. bad: steps that a report lists; count: how many it has."""
        self.count += count
        self.kinds |= kinds_of(bad)
        self.is_left_out = self.is_left_out and all(step.flags & SKIPPED for step in bad)
        steps = [step.step for step in bad]
        self.apart = least_apart(self.apart, [self.last, *steps] if self.last else steps)
        self.last = steps[-1]
        is_whole = not self.has_finite(metrics)
        # Where not all are listed, the next report says how it goes on.
        self.is_over = not is_whole and count <= len(bad) and bad[-1].step < metrics.last
        self.is_kept = self.kinds == GRAD_NORM and metrics.loss is not None
        self.is_lasting = is_whole and self.count >= (LASTS_KEPT if self.is_kept else LASTS)

    def has_finite(self, metrics: ev.TrainingMetrics) -> bool:
        """Whether of all that was not finite some value is, in a report."""
        loss, norm = self.kinds & LOSS, self.kinds & GRAD_NORM
        return not ((loss and metrics.loss is None) or (norm and metrics.grad_norm is None))


def least_apart(apart: int, steps: Sequence[int]) -> int:
    """The least number of steps from one of these to the next, or apart where that is less; 0: not known."""
    return min([after - before for before, after in pairwise(steps)] + ([apart] if apart else []), default=0)


def kinds_of(bad: Iterable[ev.OddStep]) -> int:
    """Bits LOSS and GRAD_NORM: which of the two is not finite in these steps."""
    flags = 0
    for step in bad:
        flags |= step.flags
    return (LOSS if flags & LOSS_BAD else 0) | (GRAD_NORM if flags & NORM_BAD else 0)


class Onset(msgspec.Struct, kw_only=True):
    """Where it began."""

    step: int
    culprits: list[int]
    """Empty: it is nobody's."""
    first: dict[int, Run]
    """Ranks that were not finite at that step."""
    later: dict[int, int]
    """Others → their first step."""
    reporting: list[int]
    """Ranks that report metrics."""
    reporters: int
    """How many of these report the value in question."""
    unheard: list[int]
    """Of these: those that have not reported the step."""
    last: int
    """The furthest step that is reported."""
    resumed: str
    """The checkpoint that the attempt began with, where this is its first step; empty: it is not, or there was none."""
    is_first_step: bool
    apart: int
    """Steps from one value to the next, as far as is known."""
    is_unclear: bool
    """Some rank that is not finite later has not been seen at that step: values are not seen in each."""
    evidence: dict[str, Any] = {}
    """As it was told last."""

    @classmethod
    def of(
        cls, going: Mapping[int, Run], ranks: Mapping[int, RankMetrics], unheard: list[int], resumed: str, world: int
    ) -> Onset:
        """Say who began it.

        going: ranks that are not finite now; ranks: all that report; unheard: of these, who has not reported the step;
        resumed: the checkpoint's path, or empty; world: ranks of the attempt.
        """
        step = min(run.step for run in going.values())
        first = {rank: run for rank, run in sorted(going.items()) if run.step == step}
        is_first_step = all(ranks[rank].first >= step for rank in first)
        apart = max(1, *(run.apart for run in going.values()))
        later = [run for run in going.values() if run.step > step]
        is_unclear = any(run.step - apart < step for run in later)
        heard = {rank: known for rank, known in ranks.items() if rank not in unheard}
        kind = LOSS if any(run.flags & LOSS_BAD for run in first.values()) else GRAD_NORM
        return cls(
            step=step,
            reporters=sum(1 for known in ranks.values() if known.kinds & kind),
            culprits=[] if is_unclear else _culprits(first, heard, world),
            first=first,
            later={rank: run.step for rank, run in sorted(going.items()) if run.step > step},
            reporting=sorted(ranks),
            unheard=sorted(unheard),
            last=max(known.last for known in ranks.values()),
            resumed=resumed if is_first_step else "",
            is_first_step=is_first_step,
            apart=apart,
            is_unclear=is_unclear,
        )

    @property
    def value(self) -> str:
        """`loss` or `gradient norm`."""
        return "loss" if any(run.flags & LOSS_BAD for run in self.first.values()) else "gradient norm"

    @property
    def concerned(self) -> list[int]:
        """Ranks that the sentence is about: the culprits, else all whose `value` was not finite at that step."""
        bits = LOSS_BAD if self.value == "loss" else NORM_BAD
        return self.culprits or [rank for rank, run in self.first.items() if run.flags & bits]

    @property
    def run(self) -> Run:
        """Of the first of these."""
        return self.first[self.concerned[0]]

    def is_clear(self, ranks: Mapping[int, RankMetrics]) -> bool:
        """Whether it was this step's batch that did it: before it, parameters were finite.

        Losses of others were, with the same parameters; or its own was; or the norm of the gradients before.
        """
        if self.value != "loss":
            return True
        is_alone = bool(self.culprits) and self.reporters > 1
        return is_alone or all(ranks[rank].kinds & GRAD_NORM for rank in self.concerned)

    @property
    def is_left_out(self) -> bool:
        """A GradScaler keeps it from the parameters."""
        return all(run.is_left_out for run in self.first.values())

    @property
    def is_kept(self) -> bool:
        """Somebody else does."""
        return all(run.is_kept for run in self.first.values())


def _culprits(first: Mapping[int, Run], ranks: Mapping[int, RankMetrics], world: int) -> list[int]:
    """Those whose loss was not finite while others' was; where no loss tells, likewise of norms; else nobody."""
    if world == 1:
        return list(first)
    for kind, bits in ((LOSS, LOSS_BAD), (GRAD_NORM, NORM_BAD)):
        bad = [rank for rank, run in first.items() if run.flags & bits]
        if bad:
            known = sum(1 for seen in ranks.values() if seen.kinds & kind)
            return bad if len(bad) < known else []
    return []


def evidence(
    onset: Onset,
    saved: Mapping[str, int],
    incidents: Mapping[str, Incident],
    attempt: int,
    named: Mapping[int, ev.BatchesNamed],
) -> dict[str, Any]:
    """What was measured.

    saved: checkpoints by path, with their steps; incidents: the run's; attempt: which one; named: batches by rank.
    """
    run = onset.run
    shown = [*onset.culprits, *(rank for rank in onset.first if rank not in onset.culprits)][:MAX_SHOWN]
    by_step: dict[int, list[int]] = {}
    for rank, step in onset.later.items():
        by_step.setdefault(step, []).append(rank)
    found: dict[str, Any] = {
        "ranks": rank_list([*onset.first, *onset.later]),
        "first": {str(rank): _values(onset.first[rank]) for rank in shown},
        "later": {str(step): rank_list(by_step[step]) for step in sorted(by_step)[:MAX_SHOWN]},
        "reporting": rank_list(onset.reporting),
        "steps_since": onset.last - onset.step,
    }
    for name in ("loss", "grad_norm", "learning_rate"):
        if (value := getattr(run, name)) is not None:
            found[f"last_{name}" if name != "learning_rate" else name] = value
    if run.batch:
        found["batch"] = run.batch
    indices = {str(rank): _indices_of(named[rank], onset.step) for rank in shown if rank in named}
    if any(indices.values()):
        found["indices"] = {rank: batches for rank, batches in indices.items() if batches}
        if any(named[rank].ahead == 1 for rank in shown if rank in named):
            found["is_fetched_ahead"] = True
    if origins := {str(rank): named[rank].origin for rank in shown if rank in named and named[rank].origin}:
        found["origins"] = origins
    if onset.unheard:
        found["unheard"] = rank_list(onset.unheard)
    if onset.resumed:
        found["resumed_from"] = onset.resumed
    if onset.is_first_step:
        found["is_first_step"] = True
    if onset.is_left_out:
        found["left_out"] = True
    elif onset.is_kept:
        found["losses_are_finite"] = True
    if run.spike is not None:
        spike = run.spike
        found["spike_before"] = {"step": spike.step, "loss": spike.loss, "grad_norm": spike.grad_norm}
    before = [one.id for one in incidents.values() if _precedes(one, attempt)]
    if before:
        found["preceded_by"] = before
    onset.evidence = with_poisoned(found, onset, saved)
    return onset.evidence


def _indices_of(named: ev.BatchesNamed, step: int) -> list[list[int]]:
    """What was taken for a step; with a loader that fetches ahead, the batch before, from which it was computed."""
    own = [batch for batch in named.batches if batch.step == step]
    if named.ahead == 1:
        before = [batch for batch in named.batches if batch.step < step]
        own = [*before[-1:], *own[:-1]] if own else before[-1:]
    return [batch.indices[:MAX_INDICES] for batch in own[:MAX_SHOWN] if batch.indices]


def _precedes(incident: Incident, attempt: int) -> bool:
    return incident.cause in PRECEDED_BY and incident.attempt == attempt and incident.recovered_s is None


def with_poisoned(found: Mapping[str, Any], onset: Onset, saved: Mapping[str, int]) -> dict[str, Any]:
    """The evidence with checkpoints that were saved since the onset: their parameters are not finite."""
    is_kept = onset.is_left_out or onset.is_kept
    poisoned = {path: step for path, step in saved.items() if step >= onset.step and not is_kept}
    shown = {**found.get("poisoned_checkpoints", {}), **poisoned}
    return {**found, "poisoned_checkpoints": dict(list(shown.items())[:MAX_SHOWN])} if shown else dict(found)


def _values(run: Run) -> dict[str, Any]:
    """What a rank had at its first step."""
    found: dict[str, Any] = {}
    if run.flags & LOSS_BAD:
        found["loss"] = "nan" if run.flags & LOSS_NAN else "inf"
    if run.flags & NORM_BAD:
        found["grad_norm"] = "nan" if run.flags & NORM_NAN else "inf"
    return {**found, "batch": run.batch} if run.batch else found
