"""What training computes: a number, does it come back, do replicas agree? Five parts answer: kind `numeric`.

A sixth one asks of what it is computed (detectors/data): its answers are notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from guardrun.supervisor.engine.detectors.data.training_data import TrainingData
from guardrun.supervisor.engine.detectors.numeric.endless_skips import EndlessSkips
from guardrun.supervisor.engine.detectors.numeric.left_out_steps import LeftOutSteps
from guardrun.supervisor.engine.detectors.numeric.metric_spikes import MetricSpikes
from guardrun.supervisor.engine.detectors.numeric.nan_loss import NanLoss
from guardrun.supervisor.engine.detectors.numeric.replica_divergence import ReplicaDivergence
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.derived_events import ExitBooked
from guardrun.supervisor.engine.model.run_view import RunView, attempt_of, running_attempt
from guardrun.supervisor.engine.model.verdicts import Verdict

Observed = (
    ev.NodeReport
    | ev.CheckpointSaved
    | ev.CheckpointLoaded
    | ev.BatchesNamed
    | ev.ModulesDied
    | ev.GradientsGrew
    | ExitBooked
)


class Numeric(msgspec.Struct, kw_only=True):
    """Whether training that is alive is also right."""

    observes: ClassVar[tuple[type, ...]] = (
        ev.NodeReport,
        ev.CheckpointSaved,
        ev.CheckpointLoaded,
        ev.BatchesNamed,
        ev.ModulesDied,
        ev.GradientsGrew,
        ExitBooked,
    )
    attempt: int = -1
    nan_loss: NanLoss = msgspec.field(default_factory=NanLoss)
    endless_skips: EndlessSkips = msgspec.field(default_factory=EndlessSkips)
    left_out_steps: LeftOutSteps = msgspec.field(default_factory=LeftOutSteps)
    metric_spikes: MetricSpikes = msgspec.field(default_factory=MetricSpikes)
    replica_divergence: ReplicaDivergence = msgspec.field(default_factory=ReplicaDivergence)
    training_data: TrainingData = msgspec.field(default_factory=TrainingData)

    def observe(self, event: Observed, view: RunView, now_s: float) -> Sequence[Verdict]:
        """Take in what ranks report; a new attempt is judged by itself."""
        if isinstance(event, ExitBooked):
            # The attempt may have been stopped for it by now.
            is_known = view.attempt is not None and view.attempt.number == self.attempt
            return self.nan_loss.on_exit(event.exitcode, attempt_of(view)) if is_known else ()
        attempt = running_attempt(view)
        if attempt is None or event.attempt != attempt.number:
            return ()
        if self.attempt != attempt.number:
            self.attempt = attempt.number
            spikes, replicas, data = self.metric_spikes, self.replica_divergence, self.training_data
            for part in (self.nan_loss, self.endless_skips, self.left_out_steps, spikes, replicas, data):
                part.begin_attempt()
        if isinstance(event, ev.CheckpointSaved):
            return self.nan_loss.on_saved(event)
        if isinstance(event, ev.CheckpointLoaded):
            self.nan_loss.loaded = event.path
            self.training_data.on_loaded()
            return ()
        if isinstance(event, ev.BatchesNamed):
            self.nan_loss.named[event.global_rank] = event
            return ()
        if isinstance(event, ev.ModulesDied):
            return self.training_data.dead_modules.judge(event, attempt)
        if isinstance(event, ev.GradientsGrew):
            self.metric_spikes.note_groups(event)
            return ()
        reports = [(report.global_rank, report.metrics) for report in event.ranks if report.metrics is not None]
        checks = [(report.global_rank, check) for report in event.ranks for check in report.replicas]
        told = [report for report in event.ranks if report.samples or report.losses]
        found = [
            *(self.replica_divergence.judge(checks, attempt, view, now_s) if checks else ()),
            *(self.training_data.judge(told, attempt) if told else ()),
        ]
        if not reports:
            return found
        return [
            *found,
            *self.nan_loss.judge(reports, attempt, view, now_s),
            *self.endless_skips.judge(reports, attempt, view, now_s),
            *self.left_out_steps.judge(reports, now_s),
            *self.metric_spikes.judge(reports, attempt, now_s),
            *self.training_data.chance_loss.judge(reports, attempt),
        ]
