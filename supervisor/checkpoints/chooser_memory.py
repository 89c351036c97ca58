"""What the chooser must know again after a restart of the supervisor."""

from __future__ import annotations

import msgspec

from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat

MAX_SAVED = 4000
"""Saves remembered, the latest; each is a path of a run whose newest checkpoints matter."""


class Saved(msgspec.Struct, frozen=True):
    """A save that the hooks reported."""

    step: int
    wall_s: float
    stat: tuple[int, int, int, int] | None = None
    """FileStat when it was reported: finds it again under another name."""


class Memory(msgspec.Struct):
    """JSON-able. Paths are absolute, with links resolved."""

    run_started_wall_s: float
    checkpoint_dir: str
    format: str
    world_size: int
    prior: dict[str, tuple[int, int, int]] | None = None
    """What lay in checkpoint_dir when the run began: (written_ns, bytes, files) per candidate; None: not noted."""
    saved: dict[str, Saved] = {}
    loaded: list[str] = []
    roots: dict[str, int] = {}
    """Folders that ranks were seen to save in, with the mtime_ns of the first file seen there."""
    unreadable: dict[str, tuple[int, int, int]] = {}
    """What the script could not load though it is whole: as `prior`, so that what is written anew counts again."""
    tiers: dict[str, int] = {}
    """Per family of files, what one of them turned out to hold (`ranking.Tier`)."""

    def remember(self, path: str, saved: Saved) -> None:
        """Note a save as the latest."""
        self.saved.pop(path, None)
        self.saved[path] = saved
        while len(self.saved) > MAX_SAVED:
            self.saved.pop(next(iter(self.saved)))


def stat_tuple(stat: FileStat | None) -> tuple[int, int, int, int] | None:
    """A FileStat as JSON can hold it."""
    return (stat.mtime_ns, stat.size, stat.device, stat.inode) if stat is not None else None
