"""A loss or a gradient norm that is not finite, and stays so: `numeric`, cause `nan_loss`.

Steps that the script itself overcomes (by a guard of its own, a batch that it leaves out) are no incident: a rank has
to report nothing that is finite any more, and nan_evidence.LASTS steps of it at least.

Whose it is shows in the first step alone: after the next reduction of gradients everybody's are NaN. Reports of a rank
come when there is something odd, else every few seconds, so the incident waits until all ranks that report metrics have
reported that step. Who had a loss there that is not finite, while others' was finite, is the culprit; where no loss
tells, whose gradient norm was. Where it was all ranks' in the same step, it is nobody's: a learning rate, an overflow,
parameters that were poisoned before, as in a checkpoint.

Steps that a GradScaler leaves out are not odd (engine/observation/metric_window.py), and those that guardrun does are
told by left_out_steps.py; endless_skips.py has those that do not end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.detectors.numeric import nan_evidence, nan_sentences
from guardrun.supervisor.engine.detectors.numeric.nan_evidence import CAUSE, MAX_CULPRITS, Onset, RankMetrics, Run
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView, RunView
from guardrun.supervisor.engine.model.verdicts import BadStep, Changed, Detected, Over, Poisoned, Remark, Verdict
from guardrun.supervisor.engine.observation.metric_window import LEFT_OUT, LOSS, NONFINITE

WAIT_S = 8.0
"""For ranks that have not reported the step yet; those in order do so every four seconds. In the first seconds of an
attempt it is not known yet who reports at all: all of its ranks are waited for."""
JUDGED_EVERY_S = 0.5
MOST_REPORTED = 3
"""Incidents in a run."""
MOST_REMARKS = 3
MAX_SAVED = 32
POISONED = 20
"""Steps in a row of each rank whose loss is not finite: no step that is left out lets it be so for so long."""
CONFIDENCE = 0.9
CONFIDENCE_OF_NOBODY = 0.8
CONFIDENCE_UNHEARD = 0.7
"""Some rank has not reported the step."""


Reported = tuple[int, ev.TrainingMetrics]
"""A rank, and its report."""


class Episode(msgspec.Struct, kw_only=True):
    """From the first value that is not finite until all are again."""

    began_s: float
    lasts_since_s: float = 0.0
    """When it was first seen to be more than a step; 0: it was not."""
    judged_s: float = 0.0
    runs: dict[int, Run] = {}
    """Per rank."""
    key: str = ""
    """Of its incident; empty: none is told."""
    onset: Onset | None = None
    """What that says."""
    is_poisoned: bool = False
    """That was said, too."""


class NanLoss(msgspec.Struct, kw_only=True):
    """Whether what the ranks compute is a number still."""

    ranks: dict[int, RankMetrics] = {}
    """Those that report metrics."""
    since_s: float = 0.0
    """When the first of them did."""
    episode: Episode | None = None
    saved: dict[str, int] = {}
    """Checkpoints of this attempt, the newest MAX_SAVED: path → step."""
    loaded: str = ""
    """The checkpoint that a rank has loaded in this attempt."""
    named: dict[int, ev.BatchesNamed] = {}
    """Per rank, the batches around the last step at which it began not to be finite."""
    count: int = 0
    """Incidents of this run."""
    remarks: int = 0

    def begin_attempt(self) -> None:
        """Forget the last one."""
        self.ranks, self.episode, self.saved, self.loaded, self.named = {}, None, {}, "", {}

    def judge(
        self, reports: Sequence[Reported], attempt: AttemptView, view: RunView, now_s: float
    ) -> Sequence[Verdict]:
        """Take reports in, and say who began it once that is known."""
        for rank, metrics in reports:
            self._note(rank, metrics, now_s)
        return self._judge(attempt, view, now_s) if self.episode is not None else ()

    def _note(self, rank: int, metrics: ev.TrainingMetrics, now_s: float) -> None:
        known = self.ranks.get(rank)
        if known is None:
            self.since_s = self.since_s if self.ranks else now_s
            known = self.ranks[rank] = RankMetrics(first=metrics.first)
        bad = [step for step in metrics.odd if step.flags & NONFINITE and not step.flags & LEFT_OUT]
        count = metrics.nonfinite - known.nonfinite
        run = self.episode.runs.get(rank) if self.episode is not None else None
        if bad and count > 0:
            if self.episode is None:
                self.episode = Episode(began_s=now_s)
            is_new = run is None or run.is_over or (bad[0].step > metrics.first and run.has_finite(metrics))
            if run is None or (is_new and not self.episode.key):
                run = self.episode.runs[rank] = Run.of(bad[0], known, metrics)
            run.add(bad, metrics, count)
        elif run is not None and run.has_finite(metrics):
            run.is_over = True
        known.note(metrics)

    def _judge(self, attempt: AttemptView, view: RunView, now_s: float) -> Sequence[Verdict]:
        episode = self.episode
        assert episode is not None
        if all(run.is_over for run in episode.runs.values()):
            self.episode = None
            return self._end(episode, attempt)
        if episode.key and not episode.is_poisoned:
            return self._poisoned(episode, attempt)
        if episode.key or self.count >= MOST_REPORTED or now_s - episode.judged_s < JUDGED_EVERY_S:
            return ()
        episode.judged_s = now_s
        going = {rank: run for rank, run in episode.runs.items() if not run.is_over}
        if not any(run.is_lasting for run in going.values()):
            return ()
        episode.lasts_since_s = episode.lasts_since_s or now_s
        step = min(run.step for run in going.values())
        awaited = self.ranks if now_s - self.since_s >= WAIT_S else attempt.ranks
        unheard = [rank for rank in awaited if self._last(rank) < step and _is_alive(attempt, rank)]
        if unheard and now_s - episode.lasts_since_s < WAIT_S:
            return ()
        unheard = [rank for rank in unheard if rank in self.ranks]
        return [self._detected(episode, going, unheard, attempt, view)]

    def _poisoned(self, episode: Episode, attempt: AttemptView) -> Sequence[Verdict]:
        """Whether the parameters are: then no rank that computes a loss has had a finite one for long."""
        ranks = [rank for rank, known in self.ranks.items() if known.kinds & LOSS and _is_alive(attempt, rank)]
        runs = [episode.runs.get(rank) for rank in ranks]
        if not runs or not all(run and not run.is_over and run.kinds & LOSS and run.count >= POISONED for run in runs):
            return ()
        onset = episode.onset
        assert onset is not None
        episode.is_poisoned, step = True, onset.step
        # The step before may have been the one that did it: where norms are not seen, the next loss is the first sign.
        # So may any since the last one whose values were seen.
        return [
            Poisoned(
                key=episode.key,
                step=step,
                since_s=episode.began_s,
                from_step=step - onset.apart,
                bad_step=BadStep(
                    named=dict(self.named),
                    is_clear=onset.is_clear(self.ranks),
                    is_step_known=onset.apart == 1 and not onset.is_unclear and not onset.unheard,
                ),
            )
        ]

    def _last(self, rank: int) -> int:
        known = self.ranks.get(rank)
        return known.last if known is not None else 0

    def _detected(
        self, episode: Episode, going: dict[int, Run], unheard: list[int], attempt: AttemptView, view: RunView
    ) -> Detected:
        self.count += 1
        episode.key = f"{CAUSE}/{self.count}"
        resumed = attempt.resumed_from.path if attempt.resumed_from is not None else self.loaded
        onset = episode.onset = Onset.of(
            going, self.ranks, [rank for rank in unheard if rank in self.ranks], resumed, len(attempt.ranks)
        )
        confidence = CONFIDENCE if onset.culprits else CONFIDENCE_OF_NOBODY
        evidence = nan_evidence.evidence(onset, self.saved, view.incidents, attempt.number, self.named)
        return Detected(
            key=episode.key,
            kind="numeric",
            cause=CAUSE,
            confidence=CONFIDENCE_UNHEARD if unheard else confidence,
            summary=nan_sentences.sentence(onset, attempt, evidence.get("origins", {})),
            culprits=onset.culprits[:MAX_CULPRITS],
            onset_s=episode.began_s,
            step=onset.step,
            evidence=evidence,
            level="bad",
        )

    def _end(self, episode: Episode, attempt: AttemptView) -> Sequence[Verdict]:
        """All are finite again."""
        if episode.key:
            last = max(self.ranks[rank].last for rank in episode.runs)
            return [Over(key=episode.key, text=f"loss and gradient norm are finite again, as of step {last}")]
        return self._remark(nan_sentences.glitch_text(episode.runs, attempt))

    def on_exit(self, exitcode: int, attempt: AttemptView) -> Sequence[Verdict]:
        """Say what was about to be told: it may be what has ended a rank. exitcode: as subprocess has it."""
        episode = self.episode
        if episode is None or episode.key or (exitcode == 0 and attempt.alive):
            return ()
        self.episode = None
        return self._remark(nan_sentences.last_text(episode.runs, attempt))

    def _remark(self, text: str) -> Sequence[Verdict]:
        self.remarks += 1
        return [Remark(text=text, level="warn")] if self.remarks <= MOST_REMARKS else ()

    def on_saved(self, event: ev.CheckpointSaved) -> Sequence[Verdict]:
        """Note a checkpoint; one of what is NaN already is named."""
        self.saved.pop(event.path, None)
        self.saved[event.path] = event.step
        if len(self.saved) > MAX_SAVED:
            del self.saved[next(iter(self.saved))]
        episode = self.episode
        if episode is None or episode.onset is None:
            return ()
        before = episode.onset.evidence
        after = nan_evidence.with_poisoned(before, episode.onset, self.saved)
        if before == after:
            return ()
        episode.onset.evidence = after
        return [Changed(key=episode.key, evidence=after)]


def _is_alive(attempt: AttemptView, rank: int) -> bool:
    return rank in attempt.ranks and attempt.ranks[rank].exitcode is None
