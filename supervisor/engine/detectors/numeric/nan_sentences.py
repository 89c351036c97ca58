"""How it is said that values are not finite: summaries and remarks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from guardrun.supervisor.engine.detectors.numeric.nan_evidence import MAX_CULPRITS, Onset, Run
from guardrun.supervisor.engine.incidents.sentences import who
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.observation.frames import all_ranks_text, ranks_text
from guardrun.supervisor.engine.observation.metric_window import LOSS_BAD, LOSS_NAN, NORM_NAN


def sentence(onset: Onset, attempt: AttemptView, origins: Mapping[str, str]) -> str:
    """The summary of the incident. origins: of ranks, as the evidence has them."""
    run, concerned = onset.run, onset.concerned
    what = f"the {onset.value} is {_state(run.flags)} since step {onset.step}"
    batch = f" (batch {run.batch})" if run.batch else ""
    if onset.culprits or len(concerned) == 1:
        alone = "" if onset.culprits or onset.reporters > 1 else ", the only one that reports it"
        text = f"{who(attempt, concerned[:MAX_CULPRITS])}{alone}: {what}{batch}"
    else:
        text = f"{what[0].upper()}{what[1:]} on {_whom(concerned, onset)} in the same step"
    if onset.is_first_step:
        text += f", the first after {onset.resumed} was resumed" if onset.resumed else ", the first of this attempt"
    text += _spread(onset)
    if origins:
        rank, origin = next(iter(origins.items()))
        text += f"; {f'on rank {rank} ' if len(concerned) > 1 else ''}{origin} was the first that was not"
    if onset.is_unclear:
        text += f"; values are seen only every {onset.apart} steps, so who began it is not known"
    if onset.is_left_out:
        text += "; a GradScaler leaves these steps out"
    elif onset.is_kept:
        text += "; losses stay finite, so these steps seem to be left out"
    before = run.loss if onset.value == "loss" else run.grad_norm
    return f"{text}; the last finite {onset.value} was {before:.4g}." if before is not None else f"{text}."


def _state(flags: int) -> str:
    if flags & LOSS_BAD:
        return "NaN" if flags & LOSS_NAN else "infinite"
    return "NaN" if flags & NORM_NAN else "infinite"


def _whom(ranks: Collection[int], onset: Onset) -> str:
    """`all 4 ranks`, or `ranks 1,3`."""
    count = len(onset.reporting)
    return all_ranks_text(count) if len(ranks) == count > 1 else ranks_text(sorted(ranks))


def _spread(onset: Onset) -> str:
    """How it went on from the culprits to the others."""
    if len(onset.first) > len(onset.concerned):
        return f", and the gradient norm of {_whom(onset.first, onset)} with it"
    if onset.later:
        gone = {**dict.fromkeys(onset.first, 0), **onset.later}
        is_all = len(gone) == len(onset.reporting)
        whom = _whom(gone if is_all else onset.later, onset)
        return f", and from step {min(onset.later.values())} on that of {whom}"
    return ""


def glitch_text(runs: Mapping[int, Run], attempt: AttemptView) -> str:
    """What was not finite, and is again."""
    some = "at" if max(run.count for run in runs.values()) == 1 else "from"
    return f"{_was(runs, attempt)} {some} step {min(run.step for run in runs.values())}, and is finite again"


def last_text(runs: Mapping[int, Run], attempt: AttemptView) -> str:
    """What was not finite as the ranks' training came to its end."""
    return f"{_was(runs, attempt)} at step {min(run.step for run in runs.values())}, just before the end"


def _was(runs: Mapping[int, Run], attempt: AttemptView) -> str:
    """`Rank 1 on node-a: the loss was NaN`: as it began."""
    step = min(run.step for run in runs.values())
    first = {rank: run.flags for rank, run in sorted(runs.items()) if run.step == step}
    losses = {rank: flags for rank, flags in first.items() if flags & LOSS_BAD}
    value, shown = ("loss", losses) if losses else ("gradient norm", first)
    return f"{who(attempt, list(shown)[:MAX_CULPRITS])}: the {value} was {_state(next(iter(shown.values())))}"
