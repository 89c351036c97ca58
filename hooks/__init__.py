"""What a training script may tell guardrun, and ask it. All of it does nothing, at no cost, without guardrun.

But dcp_save(), which is torch's own save then.
"""

if __name__ != "guardrun.hooks":
    raise ImportError(f"import guardrun.hooks, not {__name__}: the folder is only found under that name")

from guardrun.hooks.api import (
    dcp_save,
    metrics,
    phase,
    resume_from,
    resume_step,
    save_with,
    should_checkpoint,
    skip_batches,
    snapshot,
    step,
)

__all__ = [
    "dcp_save",
    "metrics",
    "phase",
    "resume_from",
    "resume_step",
    "save_with",
    "should_checkpoint",
    "skip_batches",
    "snapshot",
    "step",
]
