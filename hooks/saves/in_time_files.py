"""What the just-in-time saves of trainers share: a place to write to, and what a step under way has changed.

Nothing that is there already is written over or removed: a save is written beside, and renamed to a name that is free.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.examinations import SAVE_PREFIX

ROOM = 1.1
"""So much more than its tensors take has to be free."""
SPARE_BYTES = 64 << 20
MAX_BUFFERS = 1000


class NotSaved(Exception):
    """Why nothing was put in place."""


def has_reason(model: Any, rank: Rank) -> bool:
    """Whether such a save could ever be of use: several ranks, whose model lies in the host's memory."""
    first = next(iter(model.parameters()), None) if model is not None else None
    return rank.world_size > 1 and first is not None and first.device.type == "cpu"


@contextmanager
def written_beside(path: str, why_no_more: Callable[[], str]) -> Iterator[str]:
    """A free name in an empty folder; what is written there becomes path in the end. Raises NotSaved, OSError.

    The folder lies beside path, and is removed. Its name is one that no trainer takes for a checkpoint, no upload takes
    along, and guardrun looks not into (supervisor/checkpoints/search.py): where the rank is killed, it stays.
    """
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    check_free(path)
    folder = os.path.join(parent, f"{SAVE_PREFIX}{os.getpid()}.part")
    os.mkdir(folder)
    try:
        yield os.path.join(folder, name)
        if why := why_no_more():
            raise NotSaved(why)
        check_free(path)
        os.rename(os.path.join(folder, name), path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_free(path: str) -> None:
    """Raise NotSaved where anything is there."""
    if os.path.lexists(path):
        raise NotSaved(f"{os.path.basename(path)} is there already")


def check_room(folder: str, model: Any, optimizers: list[Any]) -> None:
    """Raise NotSaved where the disk has no room for all that is to be saved."""
    needed = sum(_size(one) for one in (*model.parameters(), *model.buffers()))
    for optimizer in optimizers:
        needed += sum(_size(one) for state in optimizer.state.values() for one in state.values())
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    if free < needed * ROOM + SPARE_BYTES:
        raise NotSaved(f"{free >> 20} MiB are free in {folder}, and it would take {needed >> 20}")


def _size(value: Any) -> int:
    return value.nelement() * value.element_size() if hasattr(value, "element_size") else 0


class Buffers:
    """A model's that a checkpoint holds: whether a step's forward pass has changed one since the last step."""

    def __init__(self, model: Any) -> None:
        self._names = [
            (module, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        self._known: list[tuple[Any, int]] = []

    def note(self) -> None:
        """A step is finished. On the thread that trains."""
        if self._names:
            self._known = self._now()

    def why_not(self) -> str:
        """Why they are not those of the last step; empty: they are."""
        if len(self._names) > MAX_BUFFERS:
            return "it has too many buffers to look at"
        if not self._names:
            return ""
        now = self._now()
        same = [a is b and before == after for (a, before), (b, after) in zip(self._known, now, strict=False)]
        return "" if len(now) == len(self._known) and all(same) else "the step under way has changed its buffers"

    def _now(self) -> list[tuple[Any, int]]:
        found = [module._buffers.get(name) for module, name in self._names[:MAX_BUFFERS]]
        return [(one, getattr(one, "_version", -1)) for one in found]
