"""The checkpoint that is resumed from, kept from the attempt that resumes, before the choice is acted on.

A script that begins anew, or that is cut off while it writes over its only one, would leave nothing.

    reflink   where the file system shares blocks: costs nothing
    link      another name of the same file, where the script is known to resume and writes each step to a file of its
              own: keeps what is removed or renamed over, not what is written over in place
    copy      where it is small and there is room

In the run directory, one at a time: let go once the run has written a newer whole one, or has come to its end.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.log import log
from guardrun.supervisor.base.own_files import make_private, read_own, write_own
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.reading.folder_contents import step_family
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.events import Checkpoint

FOLDER = "kept"
_ABOUT = "kept.json"
MAX_COPIED_BYTES = 4 << 30
COPY_S = 30.0
"""A restart waits for the copy."""
ROOM = 4
"""Free space must be so many times as large: what trains needs it, too."""
_TOO_LONG = f"a copy takes longer than {COPY_S:.0f} s"
_CHUNK = 8 << 20
_FICLONE = 0x40049409
_NO_CLONES = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)


class Kept(msgspec.Struct, frozen=True):
    """What is kept, and how."""

    checkpoint: Checkpoint
    """The one that it was made of."""
    path: str
    how: str
    """reflink, link, copy"""

    @property
    def is_own(self) -> bool:
        """Whether it has content of its own, which no other process writes to."""
        return self.how != "link"


class NotKept(Exception):
    """Why a checkpoint could not be kept."""


class _TooSlowError(Exception):
    """A copy is not done in time."""


class Keeper:
    """Of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._folder, self._about = run_dir / FOLDER, run_dir / _ABOUT
        self._slow_bytes: int | None = None
        """So much could not be copied in time: no restart waits for that twice."""

    def kept(self) -> Kept | None:
        """What is kept now."""
        try:
            kept = msgspec.json.decode(read_own(self._about), type=known_type(Kept))
        except (OSError, msgspec.DecodeError):
            return None
        return kept if os.path.exists(kept.path) else None

    def keep(self, checkpoint: Checkpoint, files: Sequence[str], *, is_link_enough: bool) -> Kept:
        """Keep these files, which make a checkpoint up, in place of what was kept. Raises NotKept.

        is_link_enough: nobody writes over them in place.
        """
        before = self.kept()
        if before is not None and _is_same(before.checkpoint, checkpoint) and (before.is_own or is_link_enough):
            return before
        if not files:
            raise NotKept("it has no files")
        new = self._folder.with_name(f"{FOLDER}.new")
        shutil.rmtree(new, ignore_errors=True)
        try:
            how = self._copy_or_link(files, os.path.dirname(checkpoint.path), new, is_link_enough)
            self.let_go()
            new.rename(self._folder)
            kept = Kept(checkpoint, str(self._folder / os.path.basename(checkpoint.path)), how)
            write_own(self._about, encode_json(kept))
        except OSError as error:
            raise NotKept(str(error)) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return kept

    def let_go(self) -> None:
        """Keep nothing any more."""
        self._about.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def let_go_if_passed(self, newest: Checkpoint | None) -> None:
        """Once the run has written a newer whole checkpoint than the one that is kept."""
        kept = self.kept()
        if kept is None or newest is None or newest.path == kept.path:
            return
        is_later = newest.written_wall_s > kept.checkpoint.written_wall_s
        if is_later and newest.step >= kept.checkpoint.step and not _is_same(newest, kept.checkpoint):
            self.let_go()

    def _copy_or_link(self, files: Sequence[str], base: str, into: Path, is_link_enough: bool) -> str:
        """Put the files into a new folder, by the first way that works for all. Raises OSError, NotKept."""
        total = sum(os.path.getsize(file) for file in files)
        into.mkdir(mode=0o700)
        try:
            _each(files, base, into, _clone)
            return "reflink"
        except OSError as error:
            if error.errno not in _NO_CLONES:
                raise
        if is_link_enough:
            try:
                _each(files, base, into, os.link)
                return "link"
            except OSError:
                pass  # another file system, or one without links
        space = os.statvfs(into)
        if total > MAX_COPIED_BYTES:
            raise NotKept(f"a copy of {total / 2**30:.1f} GiB is too much")
        if total * ROOM > space.f_bavail * space.f_frsize:
            raise NotKept(f"there is too little room for a copy in {into.parent}")
        if self._slow_bytes is not None and total >= self._slow_bytes:
            raise NotKept(_TOO_LONG)
        try:
            _each(files, base, into, _Copy(COPY_S))
        except _TooSlowError:
            self._slow_bytes = total
            raise NotKept(_TOO_LONG) from None
        return "copy"


def _is_same(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.path, one.written_wall_s) == (other.path, other.written_wall_s)


def _each(files: Sequence[str], base: str, into: Path, put: Callable[[str, str], object]) -> None:
    """Put each file at its place below `into`; what was put there before is removed."""
    for entry in os.scandir(into):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    for file in files:
        relative = os.path.relpath(file, base)
        if relative.startswith(os.pardir):
            raise NotKept(f"{file} lies elsewhere")
        target = into / relative
        make_private(target.parent)
        put(file, str(target))


def _open(source: str) -> BinaryIO:
    """A file, and nothing that somebody has put in its place since it was looked at. Raises OSError."""
    fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "no file any more", source)
    return open(fd, "rb")


def _clone(source: str, target: str) -> None:
    with _open(source) as read, open(target, "xb") as write:
        fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        _keep_time(read, write)


def _keep_time(source: BinaryIO, target: BinaryIO) -> None:
    target.flush()
    now = os.fstat(source.fileno())
    os.utime(target.fileno(), ns=(now.st_atime_ns, now.st_mtime_ns))


class _Copy:
    """Copies files while there is time."""

    def __init__(self, limit_s: float) -> None:
        self._until_s = time.monotonic() + limit_s

    def __call__(self, source: str, target: str) -> None:
        with _open(source) as read, open(target, "xb") as write:
            while data := read.read(_CHUNK):
                if time.monotonic() > self._until_s:
                    raise _TooSlowError
                write.write(data)
            _keep_time(read, write)


class ResumeProtection:
    """Runs on the chooser's thread."""

    def __init__(self, run_dir: Path, resumes: Callable[[], bool]) -> None:
        """resumes: whether the script is known by now to open the checkpoint that it is given."""
        self._resumes = resumes
        self._keeper = Keeper(run_dir)
        self._said: set[str] = set()

    def prepare(self, chosen: ev.CheckpointChosen, choice: Choice, avoid: Collection[str]) -> ev.CheckpointChosen:
        """Complete a choice: what else there is, how a script takes it up, and where it is kept."""
        checkpoint, known = chosen.checkpoint, choice.format
        kept = self._keeper.kept()
        whole = checkpoint if not choice.doubt else None
        if kept is not None and kept.is_own and kept.path not in avoid and _is_newer(kept, whole):
            # What it was made of is torn, or gone, or nobody can tell.
            taken = msgspec.structs.replace(kept.checkpoint, path=kept.path)
            return msgspec.structs.replace(
                chosen, checkpoint=taken, siblings=[kept.path, *choice.siblings], kept=kept.path
            )
        if checkpoint is None or known is None:
            return chosen
        family, step = step_family(checkpoint.path)
        family = family if step == checkpoint.step else ""
        is_known = self._resumes()
        try:
            if choice.doubt:
                raise NotKept("nobody can tell whether it is whole")
            is_link_enough = bool(family) and (is_known or known.resumes_itself)
            path, trouble = self._keeper.keep(checkpoint, choice.files, is_link_enough=is_link_enough).path, ""
        except NotKept as error:
            log.warning("checkpoint_not_kept", path=checkpoint.path, error=str(error))
            path, trouble = "", f"no copy of {checkpoint.path} is kept for the worst case: {error}"
        if trouble in self._said:
            trouble = ""
        self._said.add(trouble)
        return msgspec.structs.replace(
            chosen,
            family=family,
            siblings=choice.siblings,
            resumes_itself=known.resumes_itself,
            resume_way=known.resume,
            kept=path,
            keep_trouble=trouble,
        )

    def seen(self, choice: Choice) -> None:
        """What is newest now."""
        self._keeper.let_go_if_passed(choice.checkpoint)

    def let_go(self) -> None:
        """The run has come to its end."""
        self._keeper.let_go()


def elsewhere(chooser: Chooser, attempt: int, path: str) -> ev.CheckpointOpened | None:
    """A load before the first step of a checkpoint that is none of this run's; a copy, perhaps, that was fetched."""
    other = chooser.is_checkpoint_path(path)
    return ev.CheckpointOpened(attempt=attempt, path=other.path) if other is not None else None


def _is_newer(kept: Kept, chosen: ev.Checkpoint | None) -> bool:
    """Whether what is kept is further than the best that is left."""
    return chosen is None or kept.checkpoint.step > chosen.step
