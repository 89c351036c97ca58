"""torch.compile: our wrappers' frames are none that it should compile."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank import Rank


def install(module: Any, rank: Rank) -> None:
    """Put this folder on dynamo's list of those it skips."""
    module.add("guardrun.hooks")
