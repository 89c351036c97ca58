"""Telling a checkpoint again: after it changed, and under another name."""

from __future__ import annotations

import os

from guardrun.launcher.checkpoints.dcp import METADATA
from guardrun.launcher.checkpoints.formats.base import Candidate
from guardrun.launcher.checkpoints.places import FileStat, read_place, read_stat
from guardrun.launcher.checkpoints.steps import TEMPORARY

LATE_NS = 10_000_000_000
"""How much later than its file's mtime a save's report may come in and still be matched by time."""
_RENAMED_DEPTH = 4
"""How many of a path's last parts may have been renamed."""


def fingerprint(candidate: Candidate) -> tuple[int, int, int]:
    """Tell one content of a candidate from the next: (written_ns, bytes, files)."""
    return candidate.written_ns, candidate.size_bytes, len(candidate.files)


def resolve(path: str) -> str:
    """Take the links out of an absolute path; what is no path at all stays as it is."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return path


def stat_saved(path: str) -> FileStat | None:
    """Stat a saved file, or the file that completes a saved folder."""
    return read_stat(os.path.join(path, METADATA)) if os.path.isdir(path) else read_stat(path)


def find_renamed(path: str, wall_s: float) -> tuple[str, FileStat | None]:
    """Find what a save wrote under a name that was gone when its report came: renamed into place meanwhile."""
    parts = path.split(os.sep)
    for depth in range(1, min(_RENAMED_DEPTH, len(parts))):
        tail = [TEMPORARY.sub("", part).strip("._-~") or part for part in parts[-depth:]]
        for last in (tail[-1], os.path.splitext(tail[-1])[0]):
            plain = os.sep.join([*parts[:-depth], *tail[:-1], last])
            if plain != path and (stat := stat_saved(plain)) is not None:
                return plain, stat
    folder, name = os.path.split(path)
    place = read_place(folder)
    fresh = [
        (stat.mtime_ns, other)
        for other, stat in place.files.items()
        if abs(stat.mtime_ns - wall_s * 1e9) < LATE_NS and os.path.splitext(other)[1] in name
    ]
    if not fresh:
        return path, None
    other = max(fresh)[1]
    return os.path.join(folder, other), place.files[other]
