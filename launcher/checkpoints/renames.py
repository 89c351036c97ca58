"""Telling a checkpoint again: after it changed, and under another name."""

from __future__ import annotations

import os

from guardrun.launcher.checkpoints.dcp import METADATA
from guardrun.launcher.checkpoints.formats.base import Candidate
from guardrun.launcher.checkpoints.places import FileStat, read_place, read_stat
from guardrun.launcher.checkpoints.steps import TEMPORARY

LATE_NS = 10_000_000_000
"""How much later than its file's mtime a save's report may come in and still be matched by time."""


def fingerprint(candidate: Candidate) -> tuple[int, int, int]:
    """Tell one content of a candidate from the next: (written_ns, bytes, files)."""
    return candidate.written_ns, candidate.size_bytes, len(candidate.files)


def stat_saved(path: str) -> FileStat | None:
    """Stat a saved file, or the file that completes a saved folder."""
    return read_stat(os.path.join(path, METADATA)) if os.path.isdir(path) else read_stat(path)


def find_renamed(path: str, wall_s: float) -> tuple[str, FileStat | None]:
    """Find what a save wrote under a name that was gone when its report came: renamed into place meanwhile."""
    folder, name = os.path.split(path)
    place = read_place(folder)
    plain = TEMPORARY.sub("", name).strip("._-~")
    for stem in (plain, os.path.splitext(plain)[0]):
        if stem and stem in place.files:
            return os.path.join(folder, stem), place.files[stem]
    fresh = [
        (stat.mtime_ns, other)
        for other, stat in place.files.items()
        if abs(stat.mtime_ns - wall_s * 1e9) < LATE_NS and os.path.splitext(other)[1] in name
    ]
    if not fresh:
        return path, None
    other = max(fresh)[1]
    return os.path.join(folder, other), place.files[other]
