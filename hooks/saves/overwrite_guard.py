"""A rank that guardrun has begun anew beside a checkpoint, and that would write over it before anybody has opened one.

It is kept waiting for a moment, in which it is either seen that the script has resumed (by this rank, by another one,
by a reader that hooks don't see) or the attempt is ended (supervisor/engine/recovery/resumption.py). After that it goes
on: nobody is there to decide.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field, Milestone

HOLD_S = 15.0
POLL_S = 0.02


def start(rank: Rank) -> None:
    """Keep in mind what is not to be written over."""
    held = rank.settings.get("held")
    if isinstance(held, list):
        rank.held = tuple(str(path) for path in held)


def hold(rank: Rank, path_of: Callable[..., str | None], args: object, kwargs: object) -> None:
    """Before a save to what path_of finds among its arguments. Never raises."""
    try:
        path = path_of(args, kwargs)
        if path is not None and _is_of_one(os.path.realpath(path), rank.held):
            _wait(rank)
    except Exception as error:
        rank.fail("holding", error)


def _wait(rank: Rank) -> None:
    words = rank.words
    words[Field.SAVE_HELD] = 1
    until_s = time.monotonic() + HOLD_S
    while not _may_go_on(rank) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    words[Field.SAVE_HELD] = 0
    rank.held = ()


def _may_go_on(rank: Rank) -> bool:
    return bool(rank.words[Field.MAY_SAVE]) or rank.has_reached(Milestone.RESUMED)


def _is_of_one(path: str, held: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(f"{one}{os.sep}") for one in held)
