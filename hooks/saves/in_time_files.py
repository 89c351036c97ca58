"""What the just-in-time saves of trainers share: a place to write to, and what a step under way has changed.

Nothing that is there already is written over or removed: a save is written beside, and renamed to a name that is free.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ROOM = 1.1
"""So much more than its tensors take has to be free."""
SPARE_BYTES = 64 << 20
MAX_BUFFERS = 1000


class NotSaved(Exception):
    """Why nothing was put in place."""


@contextmanager
def written_beside(path: str, why_no_more: Callable[[], str], *, is_folder: bool) -> Iterator[str]:
    """A name to write to, which becomes path in the end; removed where it does not. Raises NotSaved, OSError.

    Its name is one that no trainer takes for a checkpoint, and no upload of a folder takes along.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, f"_guardrun-{os.getpid()}-{name}.part")
    os.makedirs(folder, exist_ok=True)
    if os.path.lexists(path):
        raise NotSaved(f"{name} is there already")
    if is_folder:
        os.mkdir(beside)
    else:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    try:
        yield beside
        if why := why_no_more():
            raise NotSaved(why)
        if os.path.lexists(path):
            raise NotSaved(f"{name} is there already")
        os.rename(beside, path)
    except BaseException:
        if is_folder:
            shutil.rmtree(beside, ignore_errors=True)
        else:
            os.unlink(beside)
        raise


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
