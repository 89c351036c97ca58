"""torch itself, once it is there: the long part of a start is over, and torch.compile leaves our wrappers alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from guardrun.hooks.patches import metrics
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import replace
from guardrun.hooks.wire.board import Milestone


def install(module: Any, rank: Rank) -> None:
    """Called after `import torch` ran."""
    rank.mark(Milestone.TORCH_IMPORTED)
    metrics.install(module, rank)


# torch.compile ------------------------------------------------------------------------------------------------------
# torch.compile: our wrappers' frames are none that it should compile.


def install_trace_rules(module: Any, rank: Rank) -> None:
    """Put our folders on dynamo's list of those it skips, and all files beside them but `traced`."""
    for name in os.listdir(Path(__file__).parents[1]):
        stem = name.removesuffix(".py")
        if stem.isidentifier() and stem not in ("traced", "__init__", "__pycache__"):
            module.add(f"guardrun.hooks.{stem}")


def install_remaps(module: Any, rank: Rank) -> None:
    """Let dynamo replace the collectives that it has traceable ones for: it knows them by the object in its table.

    Where it was led to the original it would miss them, and with them what `op` means.
    """
    for function in module.traceable_collective_remaps:
        function.__dict__.pop("_torchdynamo_inline", None)
    if rank.device_timer is not None:
        replace(module, "wait_tensor", rank.device_timer.wrap)  # by which DTensor waits for its results
