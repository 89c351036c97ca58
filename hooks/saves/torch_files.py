"""Files of tensors: torch.save and torch.load, safetensors.torch's save_file and load_file."""

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


def install_safetensors(module: Any, rank: Rank) -> None:
    """Wrap the two functions that know the file's name."""
    replace(module, "save_file", lambda save: wrap_save(save, rank, path_at(1, "filename"), "safetensors"))
    replace(module, "load_file", lambda load: wrap_load(load, rank, path_at(0, "filename"), "safetensors"))
