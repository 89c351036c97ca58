"""Checkpoints that are known already: what the chooser remembers of them, and telling one again after a change."""

from __future__ import annotations

import os

import msgspec

from guardrun.supervisor.checkpoints.formats.format import Candidate
from guardrun.supervisor.checkpoints.reading.dcp_metadata import METADATA
from guardrun.supervisor.checkpoints.reading.folder_contents import TEMPORARY, FileStat, read_place, read_stat

# Chooser memory -----------------------------------------------------------------------------------------------------
# What the chooser must know again after a restart of the supervisor.


MAX_SAVED = 4000
"""Saves remembered, the latest; each is a path of a run whose newest checkpoints matter."""


MAX_PARTED = 16
"""Checkpoints of parts that are remembered, the latest."""


MAX_RENAMED = 256
"""Likewise, whose path was saved at again: of a script that saves at one path most are gone."""


class Saved(msgspec.Struct, frozen=True):
    """A save that the hooks reported."""

    step: int
    wall_s: float
    stat: tuple[int, int, int, int] | None = None
    """FileStat when it was reported: finds it again under another name."""
    attempt: int = -1
    """-1: not known."""
    is_sure: bool = False
    """That file is the one that was written: by its inode, or it lay where it was written."""
    order: int = 0
    """Saves that were reported before it."""
    is_named: bool = False
    """The script has said that it is a checkpoint: by save_with(), or snapshot()."""


class Memory(msgspec.Struct):
    """JSON-able. Paths are absolute, with links resolved."""

    run_started_wall_s: float
    checkpoint_dir: str
    format: str
    world_size: int
    prior: dict[str, tuple[int, int, int]] | None = None
    """What lay in checkpoint_dir when the run began: (written_ns, bytes, files) per candidate; None: not noted."""
    saved: dict[str, Saved] = {}
    renamed: list[Saved] = []
    """What lay at a path that another file was saved at later: it may be there still, under another name."""
    reports: int = 0
    """Saves that were reported."""
    loaded: list[str] = []
    roots: dict[str, int] = {}
    """Folders that ranks were seen to save in, with the mtime_ns of the first file seen there."""
    unreadable: dict[str, tuple[int, int, int]] = {}
    """What the script could not load though it is whole: as `prior`, so that what is written anew counts again."""
    parts: dict[str, dict[str, tuple[int, int, int, int]]] = {}
    """Files that make up one checkpoint though they are fewer than there are ranks, with their FileStat: by the path of
    the first. As ranks have saved them in time, in whose state there are no more parts."""
    tiers: dict[str, int] = {}
    """Per family of files, what one of them turned out to hold (`ranking.Tier`)."""

    def remember(self, path: str, saved: Saved) -> None:
        """Note a save as the latest; not what only looks like one, in the place of one that is known for sure."""
        before = self.saved.get(path)
        if before is not None and before.is_sure and not saved.is_sure and before.stat == saved.stat:
            if saved.is_named:
                self.saved[path] = msgspec.structs.replace(before, is_named=True)
            return
        self.saved.pop(path, None)
        self.reports += 1
        is_named = saved.is_named or (before is not None and before.is_named and before.stat == saved.stat)
        self.saved[path] = msgspec.structs.replace(saved, order=self.reports, is_named=is_named)
        if before is not None and before.is_sure and not _is_one_file(before, saved):
            self.renamed = [*self.renamed, before][-MAX_RENAMED:]
        while len(self.saved) > MAX_SAVED:
            self.saved.pop(next(iter(self.saved)))

    @property
    def by_order(self) -> list[Saved]:
        """All saves that are remembered, in the order of their reports."""
        return sorted((*self.renamed, *self.saved.values()), key=lambda save: save.order)


def _is_one_file(before: Saved, after: Saved) -> bool:
    """Whether a file was written over in place, so that nothing is left of what it was."""
    return before.stat is not None and after.stat is not None and before.stat[2:] == after.stat[2:]


def stat_tuple(stat: FileStat | None) -> tuple[int, int, int, int] | None:
    """A FileStat as JSON can hold it."""
    return (stat.mtime_ns, stat.size, stat.device, stat.inode) if stat is not None else None


# Renames ------------------------------------------------------------------------------------------------------------
# Telling a checkpoint again: after it changed, and under another name.


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


def is_sure(path: str, found: str, stat: FileStat | None, wall_s: float, inode: int) -> bool:
    """Whether what `find_saved` found is what a save wrote, rather than what looks like it. path: of the report.

    An inode may be another file's by now, which was written later.
    """
    if stat is None:
        return False
    is_it = _is_inode(found, inode) if inode else found == path
    return is_it and stat.mtime_ns <= wall_s * 1e9 + LATE_NS


def stat_saved(path: str) -> FileStat | None:
    """Stat a saved file, or the file that completes a saved folder."""
    return read_stat(os.path.join(path, METADATA)) if os.path.isdir(path) else read_stat(path)


def find_saved(path: str, wall_s: float, inode: int = 0) -> tuple[str, FileStat | None]:
    """Find what a save wrote: there, or renamed into place by the time that its report came.

    wall_s: when it was written. inode: of what was written; 0: not known, and names and times have to do.
    """
    if inode and not _is_inode(path, inode):
        moved = _find_inode(path, inode)
        if moved and (stat := stat_saved(moved)) is not None:
            return moved, stat
    if (stat := stat_saved(path)) is not None:
        return path, stat
    return _find_by_name(path, wall_s)


def _is_inode(path: str, inode: int) -> bool:
    found = read_stat(path)
    return found is not None and found.inode == inode


def _find_inode(path: str, inode: int) -> str:
    """The same file or folder under a name beside it, or in a folder that was renamed with it; empty: not there."""
    parts = path.split(os.sep)
    for depth in range(1, min(_RENAMED_DEPTH, len(parts))):
        folder = os.sep.join(parts[:-depth]) or os.sep
        place = read_place(folder)
        if depth == 1:
            files = (name for name, stat in place.files.items() if stat.inode == inode)
            folders = (name for name in place.folders if _is_inode(os.path.join(folder, name), inode))
            name = next(files, "") or next(folders, "")
            if name:
                return os.path.join(folder, name)
        else:
            inner = (os.path.join(folder, name, *parts[1 - depth :]) for name in place.folders)
            if found := next((other for other in inner if _is_inode(other, inode)), ""):
                return found
        if not place.trouble:
            break  # the folder is there, so it is not what was renamed
    return ""


def _find_by_name(path: str, wall_s: float) -> tuple[str, FileStat | None]:
    """What has the name without what makes it temporary, or was written beside it just then."""
    parts = path.split(os.sep)
    for depth in range(1, min(_RENAMED_DEPTH, len(parts))):
        tail = [TEMPORARY.sub("", part).strip("._-~") or part for part in parts[-depth:]]
        for last in (tail[-1], os.path.splitext(tail[-1])[0]):
            plain = os.sep.join([*parts[:-depth], *tail[:-1], last])
            if plain != path and (stat := stat_saved(plain)) is not None:
                return plain, stat
    folder, name = os.path.split(path)
    place = read_place(folder)
    stem = os.path.splitext(TEMPORARY.sub("", name))[0]
    fresh = [
        (os.path.splitext(other)[0] == stem, stat.mtime_ns, other)
        for other, stat in place.files.items()
        if abs(stat.mtime_ns - wall_s * 1e9) < LATE_NS
        and (os.path.splitext(other)[0] == stem or os.path.splitext(other)[1] in name)
    ]
    if not fresh:
        return path, None
    other = max(fresh)[2]
    return os.path.join(folder, other), place.files[other]
