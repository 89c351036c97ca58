"""Whether a checkpoint is of training that had gone wrong: by the step at which its files were saved, else by time.

A file is known again by what it is (device, inode, size, time), under whatever name: renamed into place, linked, moved
with its folder. Where a temporary name is used again and again, or an older file takes a newer one's place, its name
says nothing of the step that it is of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from guardrun.supervisor.checkpoints.formats.format import Candidate
from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat
from guardrun.supervisor.checkpoints.saved import Saved
from guardrun.supervisor.engine.model.actions import Spoiled

MARGIN_S = 5.0
"""A bad step is heard of a moment after it; and a file server may have a clock of its own."""


def is_spoiled(candidate: Candidate, when: Spoiled, by_stat: Mapping[FileStat, Saved], saves: Iterable[Saved]) -> bool:
    """Whether it was written when training had gone wrong.

    when: in time.time()'s seconds. by_stat: saves by the files that they wrote. saves: those that it may be of, as far
    as names tell, too.
    """
    known = {
        path: save
        for path, stat in candidate.files.items()
        if (save := by_stat.get(stat)) is not None and save.is_sure and save.attempt >= 0
    }
    if any(_is_of(save, when) for save in known.values()):
        return True
    # What a folder holds beside that (its parts, a trainer's notes) and is no newer was written by the same save.
    known_ns = max((candidate.files[path].mtime_ns for path in known), default=0)
    other_ns = [stat.mtime_ns for path, stat in candidate.files.items() if path not in known]
    written_ns = max(other_ns, default=0 if known else candidate.written_ns)
    if known and written_ns <= known_ns:
        return False
    written_s = written_ns / 1e9
    if written_s > when.until_s:
        return False
    return any(_is_of(save, when) for save in saves) or written_s >= when.since_s - (0.0 if known else MARGIN_S)


def is_time_spoiled(written_s: float, when: Spoiled) -> bool:
    """The same of what was written at that time, in time.time()'s seconds, where nothing else is known of it."""
    return when.since_s - (0.0 if when.why else MARGIN_S) <= written_s <= when.until_s


def _is_of(save: Saved, when: Spoiled) -> bool:
    return save.attempt == when.attempt >= 0 and save.step >= when.from_step
