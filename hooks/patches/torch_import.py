"""That torch is there: the long part of a start is over."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Milestone


def install(module: Any, rank: Rank) -> None:
    """Called after `import torch` ran."""
    rank.mark(Milestone.TORCH_IMPORTED)
