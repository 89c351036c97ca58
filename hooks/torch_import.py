"""That torch is there: the long part of a start is over."""

from __future__ import annotations

from typing import Any

from guardrun.hooks.board import Milestone
from guardrun.hooks.rank import Rank


def install(module: Any, rank: Rank) -> None:
    """Called after `import torch` ran."""
    rank.mark(Milestone.TORCH_IMPORTED)
