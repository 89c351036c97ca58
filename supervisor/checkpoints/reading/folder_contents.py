"""What lies in a folder, read once for every format that looks into it, and the training steps in the names there."""

from __future__ import annotations

import errno
import os
import re
import stat
from functools import lru_cache
from typing import NamedTuple

from guardrun.supervisor.checkpoints.reading.verdicts import explain

MAX_FILES = 20_000
MAX_DEPTH = 6
NOT_REGULAR = "it is no regular file"


class FileStat(NamedTuple):
    """What tells one content of a file from the next."""

    mtime_ns: int
    size: int
    device: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileStat:
        """The same of what stat(2) says."""
        return cls(found.st_mtime_ns, found.st_size, found.st_dev, found.st_ino)


def read_stat(path: str) -> FileStat | None:
    """Stat a file (through links); None where it is gone or cannot be reached."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileStat.of(found)


def open_regular(path: str) -> int:
    """Open a file to read it, through links. Raises OSError; ValueError: what is no path at all.

    Nothing but a file is opened: a FIFO would wait for a writer, a device does things.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(fd).st_mode):  # put in its place since
        os.close(fd)
        raise OSError(errno.EINVAL, NOT_REGULAR, path)
    return fd


def read_start(path: str) -> str | None:
    """The first line's worth of a small text file; None where it cannot be read."""
    try:
        fd = open_regular(path)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, 256).decode("utf-8", "replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


class Place:
    """A folder's entries at one moment."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: dict[str, FileStat] = {}
        """Regular files."""
        self.links: dict[str, str] = {}
        """Symbolic links, with what they say. They are pointers, never checkpoints of their own."""
        self.folders: list[str] = []
        self.troubles: dict[str, str] = {}
        """Entries that could not be looked at, and why."""
        self.trouble = ""
        """Why the folder itself could not be read."""
        self.mtime_ns = 0
        self.saved: set[str] = set()
        """Names here that ranks were seen to save, whatever their ending."""
        self.taken: set[str] = set()
        """Names here that a format has taken for its own: the next ones need not look at them."""
        self._children: dict[str, Place] = {}
        self._tree: dict[str, FileStat] | None = None

    @property
    def names(self) -> set[str]:
        """Of all entries."""
        return {*self.files, *self.folders, *self.links}

    def child(self, name: str) -> Place:
        """Read a folder in this one, once."""
        if name not in self._children:
            self._children[name] = read_place(os.path.join(self.path, name))
        return self._children[name]

    def tree(self, depth: int = MAX_DEPTH) -> dict[str, FileStat]:
        """All regular files below, per absolute path; bounded."""
        if self._tree is None:
            self._tree = {os.path.join(self.path, name): stat for name, stat in self.files.items()}
            for name in self.folders if depth > 0 else ():
                if len(self._tree) > MAX_FILES:
                    break
                self._tree.update(self.child(name).tree(depth - 1))
        return self._tree


def _add(place: Place, entry: os.DirEntry[str]) -> None:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return  # Nobody could be told its name: neither a script's argument nor an event can carry it.
    try:
        if entry.is_symlink():
            place.links[entry.name] = os.readlink(entry.path)
            entry.stat()  # A loop or a dead end raises.
        elif entry.is_dir(follow_symlinks=False):
            place.folders.append(entry.name)
        elif entry.is_file(follow_symlinks=False):
            found = entry.stat(follow_symlinks=False)
            place.files[entry.name] = FileStat.of(found)
    except OSError as error:
        place.troubles[entry.name] = explain(error)


def read_place(path: str) -> Place:
    """List a folder. Never raises: what cannot be read is said in `trouble` and `troubles`."""
    place = Place(path)
    try:
        place.mtime_ns = os.stat(path).st_mtime_ns
        with os.scandir(path) as entries:
            for entry in entries:
                _add(place, entry)
                if len(place.files) + len(place.folders) > MAX_FILES:
                    break
    except (OSError, ValueError) as error:
        place.trouble = explain(error) if isinstance(error, OSError) else str(error)
    place.folders.sort()
    return place


# Step numbers -------------------------------------------------------------------------------------------------------
# The training step in a checkpoint's name.


_CLIMB = 3
_EXTENSION = re.compile(r"\.(?:pt|pth|ckpt|bin|safetensors|tar|pkl|pickle|model)+$", re.I)
_NOISE = re.compile(
    r"[_.-]?(?<![a-z])(?:(?:rank|r)[_-]?\d+(?:[_-]?of[_-]?\d+)?|shard[_-]?\d+[_-]?of[_-]?\d+)(?=[_.-]|$)"
    r"|-v\d+$|[_-]?\d+-of-\d+|[_-]?mp_rank_\d+",
    re.I,
)
_SAID = re.compile(
    r"(?:^|[^a-z])(?:global_?steps?|steps?|iter(?:ation)?s?|it|ba|updates?)[_=.-]?(\d{1,10})(?!\d)", re.I
)
_EPOCH = re.compile(r"epoch|(?:^|[^a-z])ep?[_=-]?\d", re.I)
_NAMED = re.compile(r"(?:checkpoint|ckpt|chkpt|model|state|snapshot|weights)[_=.-]?(\d{1,10})(?![\da-z.])", re.I)
_TRAILING = re.compile(r"(?:^|[_=-])(\d{1,10})$")

NAME_LIKE = re.compile(
    r"ckpt|chkpt|checkpoint|model|state|step|snapshot|iter|epoch|weights|last|latest|best|resume|trainer|save", re.I
)
"""What people call a checkpoint."""
STEP_FOLDER = re.compile(
    r"(?:^|[._-])(?:global_?step|steps?|iter|epoch|ep|ba|ckpt|checkpoint|chkpt)[_=-]?\d+|^\d+$|\.ckpt$", re.I
)
"""A folder that is a checkpoint rather than one that holds several."""
TEMPORARY = re.compile(r"(?:^|[._-])(?:tmp|temp|partial|incomplete|writing)\d*(?=[._-]|$)|\.part$|~$", re.I)


def parse_step(name: str) -> int | None:
    """Read the step out of a file's or folder's name; an epoch is none.

    `step=40`, `step_40`, `iter_0000040`, `checkpoint-40`, `ckpt_40.pt`, `model_000040.pt`, `net_40.pt`.
    """
    stem = _NOISE.sub("", _EXTENSION.sub("", name))
    if match := _SAID.search(stem):
        return int(match.group(1))
    if _EPOCH.search(stem):
        return None
    if match := _NAMED.search(stem) or _TRAILING.search(stem):
        return int(match.group(1))
    return None


@lru_cache(maxsize=1024)  # all ranks say the same of a checkpoint that they save together
def step_family(path: str) -> tuple[str, int]:
    """What a saved path's checkpoint has in common with others of its kind, and its step; ("", 0): no name says one.

    By the last names alone, whatever links lead there: `out/checkpoint-#` of `…/out/checkpoint-40/optimizer.pt`.
    """
    folder, name = os.path.split(path)
    for _ in range(_CLIMB):
        step = parse_step(name)
        if step is not None:
            return os.path.join(os.path.basename(folder), family_of(name)), step
        folder, name = os.path.split(folder)
        if not STEP_FOLDER.search(name):
            break
    return "", 0


def family_of(name: str) -> str:
    """The name with its numbers taken out: what checkpoints of one kind have in common."""
    return re.sub(r"\d+", "#", name)
