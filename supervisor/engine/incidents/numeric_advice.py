"""What to do about numbers that have gone wrong, by what the evidence shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAN = (
    "Where all ranks are so at once: a learning rate that is too high, an overflow (bfloat16 has a wider range than "
    "float16), a division by zero or a log of it. torch.autograd.set_detect_anomaly(True) names the operation, slowly."
)
SPIKE = (
    "See the batches of that step, and the learning rate. If it stays, go on from a checkpoint before that step, with "
    "other data or a lower rate."
)
EXPLOSION = (
    "Clip the norm (torch.nn.utils.clip_grad_norm_), lower the learning rate or warm it up for longer; if the loss "
    "does not come back, go on from a checkpoint before that step."
)

_BEFORE = "Go on from a checkpoint that was saved before the step at which replicas were equal last"
_SCRIPTS_OWN = (
    "Ranks that ought to differ are left alone where the script has its model ignore these parameters, or `[guards] "
    "check_every = 0`."
)
_CHECK = (
    "a bit that flips in memory, or a device that computes wrongly, shows in nothing else, and not each time that it "
    "is looked for"
)
DIVERGENCE = (
    f"{_BEFORE}. If the same rank's node is named again, have its device checked (`guardctl check --full`): {_CHECK}. "
    f"{_SCRIPTS_OWN}"
)
_AGAIN = (
    "where training then comes to the same numbers as before, guardrun says whether the two differ again, which is the "
    "script's doing, or not, and where it shows, which one was wrong"
)
_CONTRADICTED = (
    "Have that device, and its host's memory, checked (`guardctl check --full`, `dcgmi diag -r 3`): it need not fail "
    "again soon. What was saved after the step at which replicas were equal last may hold its values. `[policy] "
    'responses = { replica_divergence = "isolate" }` keeps such a node out of what comes.'
)
_TWICE = (
    "See what the script does on some ranks only (`if rank == 0`, a seed that differs, gradients changed after the "
    f"reduction), or train these steps on other devices: what differs there as well is the script's. {_SCRIPTS_OWN}"
)


MAX_SAMPLES = 8


def _samples(known: Mapping[str, Any]) -> str:
    """Those of the first batch of the first rank that is named."""
    batches: list[list[int]] = next(iter(known.get("indices", {}).values()), [])
    if not batches:
        return ""
    shown = ", ".join(map(str, batches[0][:MAX_SAMPLES]))
    return f" (samples {shown}{', …' if len(batches[0]) > MAX_SAMPLES else ''})"


def nan_advice(known: Mapping[str, Any]) -> str:
    """What the evidence of a nan_loss shows first: a checkpoint, a scale, data; empty where it shows none of these."""
    if known.get("left_out"):
        return (
            "A GradScaler leaves these steps out, so parameters are as they were, and stand still: no scale mends a "
            "loss that is not finite, or gradients that are so at any scale. " + NAN
        )
    if known.get("losses_are_finite"):
        return (
            "Losses stay finite, so parameters are as they were: see what leaves these steps out (a loss scaler, a "
            "guard of the script's own), and why it never ends. " + NAN
        )
    if known.get("resumed_from"):
        return (
            f"It began with the first step after {known['resumed_from']}: look for NaN in its parameters and the "
            "optimizer's state, and go on from an older one."
        )
    poisoned = known.get("poisoned_checkpoints") or {}
    words = f"Look at what is in batch {known['batch']} there{_samples(known)}. " if known.get("batch") else ""
    if poisoned:
        words += f"Do not go on from what was saved since: {', '.join(poisoned)}. "
    return f"{words}{NAN}" if words else ""


def divergence_advice(known: Mapping[str, Any]) -> str:
    """Of two replicas, by what an attempt that trained the same steps again says; empty where there are more."""
    where = " and ".join(map(str, known.get("nodes") or [])) or "the nodes of both"
    both = f"`guardctl check --full` on {where} has devices compute what has a known result: {_CHECK}."
    rerun = known.get("rerun") or {}
    if rerun.get("says") == "rank":
        return _CONTRADICTED
    if rerun.get("says") == "script":
        return _TWICE
    if rerun.get("says") == "once":
        return f"{_BEFORE}, if this attempt has not. {both}"
    return f"{_BEFORE}: {_AGAIN}. {both} {_SCRIPTS_OWN}" if known.get("agree") == 0 else ""
