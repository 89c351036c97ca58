"""torch.save and torch.load."""

from __future__ import annotations

import sys
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import path_at, replace, wrap_load, wrap_save


def install(module: Any, rank: Rank) -> None:
    """Wrap torch.serialization's two functions, which `torch` is about to import from there."""
    torch = sys.modules.get("torch")
    replace(module, "save", lambda save: wrap_save(save, rank, path_at(1, "f"), "torch.save"), (torch,))
    replace(module, "load", lambda load: wrap_load(load, rank, path_at(0, "f"), "torch.load"), (torch,))
