"""torch.distributed.checkpoint's save, async_save and load."""

from __future__ import annotations

import functools
import sys
from time import monotonic_ns
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import (
    Function,
    PathOf,
    note_saved,
    replace,
    to_path,
    wrap_load,
    wrap_save,
)
from guardrun.hooks.saves.overwrite_guard import hold
from guardrun.hooks.wire.board import Field

NAME = "dcp"


def folder_by(storage_name: str) -> PathOf:
    """Make a finder of the folder that a call is about: its checkpoint_id, else what its storage says."""

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        storage = kwargs.get(storage_name)
        places = (kwargs.get("checkpoint_id"), getattr(storage, "path", None), getattr(storage, "checkpoint_id", None))
        for place in places:
            # "" and "." are what a storage holds before it is told where to; URLs are no folders.
            if place and str(place) != "." and "://" not in str(place):
                return to_path(place)
        return None

    return find


def _package() -> tuple[Any, ...]:
    return (sys.modules.get("torch.distributed.checkpoint"),)


def install_save(module: Any, rank: Rank) -> None:
    """Wrap state_dict_saver's functions, before the package imports them from there."""
    pending: set[str] = set()
    path_of = folder_by("storage_writer")

    def path_unless_pending(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        path = path_of(args, kwargs)
        return None if path in pending else path

    replace(module, "save", lambda save: wrap_save(save, rank, path_unless_pending, NAME), _package())
    replace(module, "async_save", lambda save: _wrap_async(save, rank, path_of, pending), _package())


def install_load(module: Any, rank: Rank) -> None:
    """Wrap state_dict_loader's function, before the package imports it from there."""
    replace(module, "load", lambda load: wrap_load(load, rank, folder_by("storage_reader"), NAME), _package())


def _wrap_async(original: Function, rank: Rank, path_of: PathOf, pending: set[str]) -> Function:
    """Wrap a function that returns a future (or a response that holds one): the save is done when that is."""

    @functools.wraps(original)
    def async_save(*args: Any, **kwargs: Any) -> Any:
        began_ns = monotonic_ns()
        step = rank.step_now()
        if rank.held:
            hold(rank, path_of, args, kwargs)
        path = path_of(args, kwargs)
        if path is not None:
            pending.add(path)
        is_owner = rank.is_owner()
        if is_owner:
            rank.words[Field.SAVE_SINCE_NS] = began_ns
        try:
            result = original(*args, **kwargs)
        except BaseException:
            pending.discard(path or "")
            raise
        finally:
            if is_owner:
                rank.words[Field.SAVE_SINCE_NS] = 0

        def on_done(future: Any) -> None:
            pending.discard(path or "")
            if not future.cancelled() and future.exception() is None:
                note_saved(rank, path, NAME, step, began_ns)

        try:
            future: Any = getattr(result, "upload_completion", result)
            future.add_done_callback(on_done)
        except Exception as error:
            pending.discard(path or "")
            rank.fail("dcp.async_save", error)
        return result

    return async_save
