"""Folding away what is not the user's code: whose a file is, and runs of library frames under one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from guardrun.supervisor.engine.observation.frames import is_users_file

_HOOKS = "/guardrun/hooks/"
_SITES = ("site-packages/", "dist-packages/")


class FrameLike(Protocol):
    """A frame, of one stack or of a group of them."""

    @property
    def function(self) -> str:
        """Its name, qualified (`Class.method`) or not, as its source gives it."""
        ...

    @property
    def file(self) -> str:
        """Its path; `<…>` where the code comes from no file."""
        ...

    @property
    def line(self) -> int:
        """Where the stack is in it; of a group's several lines the first."""
        ...


F = TypeVar("F", bound=FrameLike)


class Fold(msgspec.Struct, Generic[F], frozen=True):
    """Consecutive frames that are shown, or folded under one line."""

    frames: list[F]
    label: str = ""
    """Empty: shown."""


def fold(frames: Sequence[F]) -> list[Fold[F]]:
    """Fold runs of library frames, but for the innermost frame, which says what is being waited in.

    Our own hooks' frames are left out: they are there because somebody watches.
    """
    folds: list[tuple[list[F], bool]] = []
    shown = [frame for frame in frames if _HOOKS not in frame.file] or list(frames)
    for index, frame in enumerate(shown):
        is_folded = index > 0 and not is_users_file(frame.file)
        if is_folded and folds and folds[-1][1]:
            folds[-1][0].append(frame)
        else:
            folds.append(([frame], is_folded))
    return [Fold(run, _label(run) if is_folded and len(run) > 1 else "") for run, is_folded in folds]


def _label(frames: Sequence[FrameLike]) -> str:
    """`7 frames of torch`."""
    names = list(dict.fromkeys(library_name(frame.file) for frame in frames))
    return f"{len(frames)} frames of {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def library_name(path: str) -> str:
    """Whose a file is: `torch`, `transformers`, `python` for the standard library."""
    for part in _SITES:
        if part in path:
            return path.rpartition(part)[2].split("/")[0].removesuffix(".py")
    if path.startswith("<") or "/lib/python3" in path:
        return "python"
    for name in ("torch", "guardrun"):
        if f"/{name}/" in path:
            return name
    return "libraries"


def short_path(path: str) -> str:
    """A library's file from the library on, anything else from its last folder on."""
    for part in _SITES:
        if part in path:
            return path.rpartition(part)[2]
    match = re.search(r"/lib/python3[^/]*/(.+)", path)
    if match:
        return match[1]
    return "/".join(path.rsplit("/", 2)[-2:])
