"""The user's own lines around a frame, as they are in the file now; and whether that is the file that ran."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.base.redaction import redact_text
from guardrun.supervisor.base.source_files import UnsuitableError, read_source_lines
from guardrun.supervisor.engine.observation.frames import is_users_file
from guardrun.supervisor.engine.observation.stack_grouping import StackGroup

AROUND = 2
MAX_FILES = 24
MAX_LINE_CHARS = 200
CHANGED = "has been changed since the ranks were started: the lines shown may be others"
TIMEOUT_S = 1.0
"""A file may lie on a mount that does not answer: the page is written without it."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One file's text, or why there is none."""

    lines: list[str] = []
    trouble: str = ""
    """Why there are no lines, or why they may be others than those that ran."""

    def around(self, line: int) -> list[tuple[int, str]]:
        """(number, text) of the line and its neighbours; nothing where the file has no such line."""
        if not 1 <= line <= len(self.lines):
            return []
        first, last = max(1, line - AROUND), min(len(self.lines), line + AROUND)
        return [(n, self.lines[n - 1]) for n in range(first, last + 1)]


Sources = dict[str, Source]


def files_of(groups: Iterable[StackGroup]) -> list[str]:
    """The user's files that the groups' frames are in, those of the first groups first; bounded."""
    files = (frame.file for group in groups for frame in group.frames if is_users_file(frame.file))
    return list(dict.fromkeys(files))[:MAX_FILES]


def read_sources(files: Sequence[str], folder: str, began_wall_s: float) -> Sources:
    """Read them within TIMEOUT_S. folder: where relative names begin; began_wall_s: when the ranks began to run."""
    jobs = [lambda file=file: read_source(os.path.join(folder, file), began_wall_s) for file in files]
    found = run_bounded(jobs, workers=4, timeout_s=TIMEOUT_S)
    return {file: _answer(source) for file, source in zip(files, found, strict=True)}


def _answer(source: Source | BaseException | None) -> Source:
    if isinstance(source, Source):
        return source
    if source is None:
        return Source(trouble=f"could not be read within {TIMEOUT_S:.0f} s")
    return Source(trouble=f"could not be read: {getattr(source, 'strerror', None) or source}")


def read_source(path: str, began_wall_s: float) -> Source:
    """Read one file. Raises OSError."""
    try:
        text, changed_s = read_source_lines(path)
    except UnsuitableError as error:
        return Source(trouble=str(error))
    lines = [redact_text(line[:MAX_LINE_CHARS]) for line in text]
    return Source(lines=lines, trouble=CHANGED if changed_s > began_wall_s else "")
