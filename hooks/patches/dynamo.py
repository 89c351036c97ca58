"""torch.compile: our wrappers' frames are none that it should compile."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank.rank import Rank


def install(module: Any, rank: Rank) -> None:
    """Put this folder on dynamo's list of those it skips."""
    module.add("guardrun.hooks")


def install_remaps(module: Any, rank: Rank) -> None:
    """Let dynamo replace the collectives that it has traceable ones for: it knows them by the object in its table.

    Where it was led to the original it would miss them, and with them what `op` means.
    """
    for function in module.traceable_collective_remaps:
        function.__dict__.pop("_torchdynamo_inline", None)
