"""Saves and loads of checkpoints, whoever does them: shown on the board while they run, said when they are done.

What a save wrote is said as it was written. Savers that write beside and rename, and files that are no checkpoint,
are the supervisor's to tell apart.
"""

from __future__ import annotations

import functools
import os
import stat
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.overwrite_guard import hold
from guardrun.hooks.wire.board import PHASES, Field
from guardrun.hooks.wire.variables import RESUME_FROM

Function = Callable[..., Any]
PathOf = Callable[[tuple[Any, ...], dict[str, Any]], str | None]

MAX_LOADED = 256
"""Paths of loads that are said: a data set of small files is read in the same way."""
SAME_LOAD_NS = 1_000_000_000
COMPLETES = ".metadata"
"""Written last into a folder of torch.distributed.checkpoint's."""
PARTS = (".distcp",)
"""What torch.distributed.checkpoint's own threads write by torch.save: said as a whole, by its folder."""

_saving: set[int] = set()
"""Threads inside a save: what a save saves is a part of it."""


@contextmanager
def quiet_saves(ident: int) -> Iterator[None]:
    """Tell of nothing that this thread saves meanwhile: the supervisor has asked for it, and judges it first."""
    _saving.add(ident)
    try:
        yield
    finally:
        _saving.discard(ident)


def path_at(position: int, name: str) -> PathOf:
    """Make a finder of the path among a call's arguments: a str, a PathLike, or an open file that has a name."""

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        target = args[position] if len(args) > position else kwargs.get(name)
        return to_path(target)

    return find


def to_path(target: object) -> str | None:
    """Answer the absolute path that target stands for; None for a buffer or a pipe."""
    if not isinstance(target, str | os.PathLike):
        target = getattr(target, "name", None)
        if not isinstance(target, str) or not os.path.exists(target):
            return None
    path = os.fspath(target)
    return os.path.abspath(path) if isinstance(path, str) and path else None


def wrap_save(original: Function, rank: Rank, path_of: PathOf, writer: str) -> Function:
    """Wrap a function that writes a checkpoint and returns when it is written."""

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        ident = get_ident()
        if ident in _saving:
            return original(*args, **kwargs)
        if rank.held:
            hold(rank, path_of, args, kwargs)
        words = rank.words
        is_owner = ident == rank.owner_ident
        began_ns = monotonic_ns()
        step = rank.step_now()
        _saving.add(ident)
        if is_owner:
            words[Field.SAVE_SINCE_NS] = began_ns
        try:
            result = original(*args, **kwargs)
        except BaseException:
            _note_failed("SaveFailed", rank, path_of, args, kwargs)
            raise
        finally:
            _saving.discard(ident)
            if is_owner:
                words[Field.SAVE_SINCE_NS] = 0
        try:
            note_saved(rank, path_of(args, kwargs), writer, step, began_ns)
        except Exception as error:
            rank.fail(writer, error)
        return result

    return save


def _note_failed(kind: str, rank: Rank, path_of: PathOf, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say which file a save or a load that raised was about. Never raises."""
    try:
        path = path_of(args, kwargs)
        if path is not None:
            rank.send(kind, path=path)
    except Exception as error:
        rank.fail(kind, error)


def note_saved(rank: Rank, path: str | None, writer: str, step: int, began_ns: int) -> None:
    """Count a save and say where it lies. A save into memory is neither."""
    if path is None or path.endswith(PARTS):
        return
    ended_ns = monotonic_ns()
    rank.words[Field.SAVES] += 1
    rank.words[Field.PROGRESS_NS] = ended_ns
    own_steps = step - rank.step_now() + int(rank.words[Field.STEP])
    identity = _identity_of(path)
    if rank.trail is not None and identity:  # should it die before this is sent
        rank.trail.note_save(own_steps, step, began_ns, identity["size"], identity["mtime_ns"])
    told = {"began_ns": began_ns, "ended_ns": ended_ns, "own_steps": own_steps, **identity}
    rank.send("CheckpointSaved", path=path, writer=writer, step=step, **told)


def _identity_of(path: str) -> dict[str, int]:
    try:
        found = os.stat(path)
        completes = os.stat(os.path.join(path, COMPLETES)) if stat.S_ISDIR(found.st_mode) else found
        return {"inode": found.st_ino, "size": completes.st_size, "mtime_ns": completes.st_mtime_ns}
    except (OSError, ValueError):
        return {}


def wrap_load(original: Function, rank: Rank, path_of: PathOf, reader: str) -> Function:
    """Wrap a function that reads a checkpoint and returns when it is read."""
    said: dict[str, int] = {}

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        words = rank.words
        before = words[Field.PHASE]
        shows = get_ident() == rank.owner_ident and before != PHASES.index("load")
        if shows:
            words[Field.PHASE] = PHASES.index("load")
            words[Field.PHASE_SINCE_NS] = monotonic_ns()
        try:
            result = original(*args, **kwargs)
        except Exception:
            _note_failed("LoadFailed", rank, path_of, args, kwargs)
            raise
        finally:
            if shows:
                words[Field.PHASE] = before
                words[Field.PHASE_SINCE_NS] = monotonic_ns()
        try:
            _note_loaded(rank, path_of(args, kwargs), reader, said)
        except Exception as error:
            rank.fail(reader, error)
        return result

    return load


def _note_loaded(rank: Rank, path: str | None, reader: str, said: dict[str, int]) -> None:
    now_ns = monotonic_ns()
    rank.words[Field.PROGRESS_NS] = now_ns
    if path is None:
        return
    chosen = os.environ.get(RESUME_FROM)
    is_chosen = bool(chosen) and (path == chosen or path.startswith(f"{chosen}{os.sep}"))
    if is_chosen:
        rank.note_resumed()
    if now_ns - said.get(path, -SAME_LOAD_NS) < SAME_LOAD_NS:
        return
    if path not in said and len(said) >= MAX_LOADED and not is_chosen:
        return
    said[path] = now_ns
    rank.tell_loaded(path, reader)


def replace(module: Any, name: str, make: Callable[[Function], Function], also: tuple[Any, ...] = ()) -> None:
    """Put make(original) in the place of a module's function, and of the same function in other modules."""
    original = getattr(module, name, None)
    if original is None:
        return
    ours = make(original)
    setattr(module, name, ours)
    for other in also:
        if other is not None and getattr(other, name, None) is original:
            setattr(other, name, ours)
