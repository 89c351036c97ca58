"""Lightning's saves: torch.save into memory, which is then written through fsspec, so only the caller knows where to.

Its loads are torch.load's, from an open file that has a name.
"""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import path_at, replace, wrap_save

_find = path_at(1, "filepath")


def _local_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """None for a URL: nothing of it lies in this machine's files."""
    target = args[1] if len(args) > 1 else kwargs.get("filepath")
    return None if "://" in str(target) else _find(args, kwargs)


def install(module: Any, rank: Rank) -> None:
    """Wrap the one function that all of Lightning's checkpoints in one file go through."""
    replace(module, "_atomic_save", lambda save: wrap_save(save, rank, _local_path, "lightning"))
