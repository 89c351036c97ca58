"""A loss or a gradient norm that leaps up and does not come back: `numeric`, causes `loss_spike` and `grad_explosion`.

Most spikes heal: a bad batch, a step that was too large. So an odd step (engine/observation/metric_window.py) only
begins an episode. Then the medians of the reports that follow count, against what was usual when it began: as long as
those of most ranks that report are as far above it as an odd value is, it has not healed. After HEAL_STEPS steps of
that it is an incident; one that heals sooner is worth a remark, if more than single steps of it were seen.

Where the loss is as high for twice as long, and has not begun to come down, training is spoilt: harder data, which
looks alike at first, is learned. Then a checkpoint from before would help (engine/recovery/voluntary/rollback.py).

A norm that rises alone is none: layers that are unfrozen, another reduction of the loss. It explodes where the loss
gets worse with it, or where it is ALONE times what it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from guardrun.supervisor.engine.detectors.numeric import spike_evidence
from guardrun.supervisor.engine.detectors.numeric.nan_evidence import least_apart
from guardrun.supervisor.engine.detectors.numeric.spike_evidence import (
    EXPLOSION,
    SPIKE,
    TOGETHER,
    Level,
    median,
)
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Detected, Over, Poisoned, Remark, Verdict
from guardrun.supervisor.engine.observation.metric_window import GRAD_NORM, LOSS
from guardrun.supervisor.engine.observation.spike_score import add_up, score_of

HEAL_STEPS = 100
HEAL_S = 20.0
"""Where steps are short: so many reports that a burst between two of them is none."""
SPOILT = 2
"""Times as long, in steps and seconds."""
HIGHS = 3
"""Reports of a rank in a row."""
ALONE = 50.0
WORSE = 1.1
"""Times the loss that was usual."""
DEAF_S = 60.0
"""A rank that has not reported for so long is not waited for."""
JUDGED_EVERY_S = 0.5
MOST_REPORTED = 3
"""Incidents of each cause in a run."""
MOST_REMARKS = 3
MOST_GROUPED = 64
"""Ranks whose gradients are known by group."""
REMARK_EVERY_S = 600.0
CONFIDENCE = 0.8


class Episode(msgspec.Struct, kw_only=True):
    """From the first odd step until what is reported is as usual again."""

    began_s: float
    judged_s: float = 0.0
    losses: dict[int, Level] = {}
    norms: dict[int, Level] = {}
    """Of ranks that had an odd step."""
    last: int = 0
    """The furthest step that is reported."""
    last_odd: dict[int, int] = {}
    """Per rank."""
    apart: int = 0
    """Steps between two odd ones: values need not be seen in each step; 0: not known yet."""
    learning_rate: float | None = None
    """At its beginning."""
    was_high: bool = False
    """Most ranks were, in a report after the odd step."""
    key: str = ""
    """Of its incident; empty: none is told."""
    cause: str = ""
    step: int = 0
    """Where it says that it began."""
    is_spoilt: bool = False
    """That was said, too."""


class MetricSpikes(msgspec.Struct, kw_only=True):
    """Whether what leaps up comes back."""

    kinds: dict[int, int] = {}
    """Per rank: bits LOSS and GRAD_NORM of what it reports."""
    reporters: dict[int, int] = {}
    """Per such bit: how many ranks report it."""
    episode: Episode | None = None
    counts: dict[str, int] = {}
    """Incidents of this run, by cause."""
    remarks: int = 0
    remarked_s: float = 0.0
    grown: dict[int, ev.GradientsGrew] = {}
    """Per rank: whose gradients had grown when that was said last."""
    spikes: dict[int, ev.SpikeCounts] = {}
    """Of ranks, in this attempt; …"""
    spikes_before: ev.SpikeCounts = ev.SpikeCounts()
    """… and of all of them in those before."""

    def begin_attempt(self) -> None:
        """Forget the last one, but for how often it spiked."""
        self.kinds, self.reporters, self.episode, self.grown = {}, {}, None, {}
        self.spikes_before, self.spikes = add_up((self.spikes_before, *self.spikes.values())), {}

    def note_groups(self, told: ev.GradientsGrew) -> None:
        """A rank says whose gradients have grown."""
        if told.global_rank in self.grown or len(self.grown) < MOST_GROUPED:
            self.grown[told.global_rank] = told

    def spike_score(self) -> dict[str, float | int]:
        """Of the run so far, as observation/spike_score.py has it; empty: too few values came."""
        return score_of(add_up((self.spikes_before, *self.spikes.values())))

    def judge(
        self,
        reports: Sequence[tuple[int, ev.TrainingMetrics]],
        attempt: AttemptView,
        now_s: float,
    ) -> Sequence[Verdict]:
        """Take reports of ranks in, and see whether what was odd is still."""
        for rank, metrics in reports:
            self._note(rank, metrics, now_s)
        episode = self.episode
        if episode is None or now_s - episode.judged_s < JUDGED_EVERY_S:
            return ()
        episode.judged_s = now_s
        return self._judge(episode, attempt, now_s)

    def _note(self, rank: int, metrics: ev.TrainingMetrics, now_s: float) -> None:
        if metrics.spikes is not None:
            self.spikes[rank] = metrics.spikes
        for bit, value in ((LOSS, metrics.loss), (GRAD_NORM, metrics.grad_norm)):
            if value is not None and not self.kinds.get(rank, 0) & bit:
                self.kinds[rank] = self.kinds.get(rank, 0) | bit
                self.reporters[bit] = self.reporters.get(bit, 0) + 1
        odd = [step for step in metrics.odd if step.loss_sigmas or step.norm_sigmas]
        if metrics.loss is None and metrics.grad_norm is None:
            if self.episode is not None and not self.episode.key:
                self.episode = None  # Nothing is finite: what it was is told as nan_loss.
            return
        if self.episode is None:
            if not odd:
                return
            self.episode = Episode(began_s=now_s, learning_rate=metrics.learning_rate)
        episode = self.episode
        episode.last = max(episode.last, metrics.last)
        if odd:
            steps = [step.step for step in odd]
            before = episode.last_odd.get(rank)
            episode.apart = least_apart(episode.apart, steps if before is None else [before, *steps])
            episode.last_odd[rank] = steps[-1]
        for levels, value in ((episode.losses, metrics.loss), (episode.norms, metrics.grad_norm)):
            if (level := levels.get(rank)) is not None and metrics.first > level.step:
                level.note(value, metrics.loss, now_s, is_known=bool(episode.key))
        if not episode.key:
            self._begin(rank, odd, metrics, now_s)

    def _begin(self, rank: int, odd: list[ev.OddStep], metrics: ev.TrainingMetrics, now_s: float) -> None:
        """The first odd step of a rank says what was usual before, and from where on a value is far above it."""
        assert self.episode is not None
        losses = [step for step in odd if step.loss_sigmas]
        norms = [step for step in odd if step.norm_sigmas]
        for levels, steps, make in (
            (self.episode.losses, losses, Level.of_loss),
            (self.episode.norms, norms, Level.of_norm),
        ):
            start = spike_evidence.start_of(steps) if steps else None
            if start is None or ((known := levels.get(rank)) is not None and known.goes_on(start, metrics)):
                continue
            if (level := make(start, metrics, now_s)) is not None:
                levels[rank] = level

    def _judge(self, episode: Episode, attempt: AttemptView, now_s: float) -> Sequence[Verdict]:
        high_losses, high_norms = (_high(levels, 1) for levels in (episode.losses, episode.norms))
        is_loss = 2 * len(high_losses) > self.reporters.get(LOSS, 0)
        is_norm = 2 * len(high_norms) > self.reporters.get(GRAD_NORM, 0)
        if episode.key:
            if is_norm if episode.cause == EXPLOSION else is_loss:
                return self._spoilt(episode, now_s)
        elif is_loss or (is_norm and _explodes(high_norms)):
            episode.was_high = True
            return self._found(episode, attempt, now_s)
        levels = [*episode.losses.values(), *episode.norms.values()]
        if any(level.now is None and now_s - level.seen_s < DEAF_S for level in levels):
            return ()
        self.episode = None
        if episode.key:
            return [Over(key=episode.key, text=spike_evidence.back_text(episode.losses, episode.norms, episode.cause))]
        return self._remark(episode, now_s)

    def _found(self, episode: Episode, attempt: AttemptView, now_s: float) -> Sequence[Verdict]:
        """It is high: an incident, once that has lasted."""
        losses, norms = _high(episode.losses, HIGHS), _high(episode.norms, HIGHS)
        is_loss = 2 * len(losses) > self.reporters.get(LOSS, 0)
        is_norm = 2 * len(norms) > self.reporters.get(GRAD_NORM, 0) and (is_loss or _explodes(norms))
        cause, levels = (EXPLOSION, norms) if is_norm else (SPIKE, losses)
        if not (is_loss or is_norm) or self.counts.get(cause, 0) >= MOST_REPORTED:
            return ()
        step = min(level.step for level in (*levels.values(), *losses.values()))
        if episode.last - step < HEAL_STEPS or now_s - episode.began_s < HEAL_S:
            return ()
        self.counts[cause] = self.counts.get(cause, 0) + 1
        episode.key, episode.cause, episode.step = f"{cause}/{self.counts[cause]}", cause, step
        culprit = spike_evidence.culprit_of(episode.losses, step)
        reporting = self.reporters[GRAD_NORM if is_norm else LOSS]
        evidence = spike_evidence.evidence(cause, levels, episode.losses, first=step, last=episode.last)
        if episode.learning_rate is not None:
            evidence["learning_rate"] = episode.learning_rate
        evidence |= spike_evidence.groups(self.grown, culprit, since=step)
        if score := self.spike_score():
            evidence["spike_score"] = score
        return [
            Detected(
                key=episode.key,
                kind="numeric",
                cause=cause,
                confidence=CONFIDENCE,
                summary=spike_evidence.sentence(evidence, culprit, attempt, reporting),
                culprits=[] if culprit is None else [culprit],
                onset_s=episode.began_s,
                step=step,
                evidence=evidence,
            )
        ]

    def _spoilt(self, episode: Episode, now_s: float) -> Sequence[Verdict]:
        """Whether the loss of most ranks has been high for so long that it will not come back."""
        stays = [level for level in _high(episode.losses, HIGHS).values() if level.stays]
        since, since_s = episode.last - episode.step, now_s - episode.began_s
        if episode.is_spoilt or 2 * len(stays) <= self.reporters.get(LOSS, 0):
            return ()
        if since < SPOILT * HEAL_STEPS or since_s < SPOILT * HEAL_S:
            return ()
        episode.is_spoilt = True
        # It may have begun to go wrong some steps before it was far off, which is seen where values are.
        return [
            Poisoned(
                key=episode.key,
                step=episode.step,
                within=HEAL_STEPS,
                since_s=episode.began_s,
                from_step=episode.step - TOGETHER - max(0, episode.apart - 1),
            )
        ]

    def _remark(self, episode: Episode, now_s: float) -> Sequence[Verdict]:
        is_due = not self.remarks or now_s - self.remarked_s >= REMARK_EVERY_S
        if not episode.was_high or not is_due or self.remarks >= MOST_REMARKS:
            return ()
        self.remarks, self.remarked_s = self.remarks + 1, now_s
        return [Remark(text=spike_evidence.healed_text(episode.losses, episode.norms, episode.last))]


def _high(levels: dict[int, Level], reports: int) -> dict[int, Level]:
    """Those that have been far above the usual in so many reports in a row, or more."""
    return {rank: level for rank, level in levels.items() if level.highs >= reports}


def _explodes(norms: dict[int, Level]) -> bool:
    """Whether norms that rise mean harm: they are out of all proportion, or losses are worse since."""
    if not norms:
        return False
    worse = sum(level.is_loss_worse(WORSE) for level in norms.values())
    return median([level.factor for level in norms.values()]) >= ALONE or 2 * worse > len(norms)
