"""Writes copies of ranks' states, kept in memory, out as a checkpoint, once the ranks have fallen.

Bytes are copied, and their checksum is compared; nothing of them is understood here. No file is written over, and none
of a set has its name before all of it is on the disk.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.spoiled import is_time_spoiled
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.saving.snapshot_sets import Copy, WholeSet

WRITE_S = 300.0
CHUNK_BYTES = 8 << 20
SPARE_BYTES = 64 << 20
"""Of a disk, left free."""
MOST_NAMES = 100
MAX_WHY_CHARS = 300
NO_NAME = "all names that it might have are taken"


class Written(NamedTuple):
    """What came of it."""

    step: int = 0
    paths: tuple[str, ...] = ()
    inodes: tuple[int, ...] = ()
    size_bytes: int = 0
    took_s: float = 0.0
    why: str = ""
    """Why nothing was written, or an older one than could have been; empty: there was nothing newer to write."""
    whole: WholeSet | None = None
    """What was written."""


class NotWrittenError(Exception):
    """Why."""


class Readable(Protocol):
    """One rank's copies."""

    def read(self, slot: int, length: int, offset: int) -> bytes:
        """Of a copy; fewer bytes at its end. Raises OSError."""


Write = Callable[[WholeSet, float], tuple[list[str], list[int]]]
"""Gets a set, and until when (time.monotonic()) it is to be written. Files' names and inodes; all of it, or nothing.
Raises OSError, ValueError, NotWrittenError."""


def write_newest(
    found: tuple[Sequence[WholeSet], str],
    newest_step: int,
    write: Write,
    *,
    attempt: int,
    past_step: int,
    spoiled: Sequence[Spoiled],
    wall_s: Callable[[int], float],
    limit_s: float = WRITE_S,
) -> Written:
    """Write the newest whole set out, if its step is past that of the newest checkpoint. May block as disks do.

    found: as find_whole says. newest_step: of any copy, part of a whole or not. spoiled: when training had
    gone wrong (time.time()'s seconds, as wall_s makes them of a record's).
    """
    began_s = time.monotonic()
    lacking, why = (found[1] if newest_step > past_step else ""), ""
    for whole in found[0]:
        if whole.step <= past_step:
            break
        if any(_is_spoiled(whole, attempt, when, wall_s(whole.written_ns)) for when in spoiled):
            why = why or f"step {whole.step}: training had gone wrong by then"
            continue
        try:
            paths, inodes = write(whole, began_s + limit_s)
        except (OSError, ValueError, NotWrittenError) as error:
            log.warning("snapshot_not_written", step=whole.step, error=str(error))
            why = why or f"step {whole.step}: {error}"[:MAX_WHY_CHARS]
            continue
        size = sum(copy.record.size_bytes for copy in whole.copies)
        took_s = time.monotonic() - began_s
        return Written(whole.step, tuple(paths), tuple(inodes), size, took_s, why[:MAX_WHY_CHARS], whole)
    return Written(why=(why or lacking)[:MAX_WHY_CHARS])


def _is_spoiled(whole: WholeSet, attempt: int, when: Spoiled, written_s: float) -> bool:
    if when.attempt == attempt:
        return whole.step >= when.from_step
    return is_time_spoiled(written_s, when)


def write_here(held: Mapping[int, Readable]) -> Write:
    """Of sets of which this node has all. held: by global rank."""

    def write(whole: WholeSet, until_s: float) -> tuple[list[str], list[int]]:
        files = PartFiles()
        try:
            files.prepare(held, whole.copies, until_s)
            for number in range(MOST_NAMES):
                if (names := files.name(number)) is not None:
                    return names, [os.stat(name).st_ino for name in names]
            raise NotWrittenError(NO_NAME)
        finally:
            files.drop()

    return write


def write_folder(held: Mapping[int, Readable], copies: Sequence[Copy], folder: str, until_s: float) -> str:
    """Write the files of a folder into a new one beside it; its name. May block as disks do.

    Raises OSError, NotWrittenError: nothing is left then.
    """
    temporary = temporary_of(folder, "")
    places = [os.path.join(temporary, os.path.relpath(copy.record.path, folder)) for copy in copies]
    if os.path.isdir(temporary) and not os.path.islink(temporary):
        shutil.rmtree(temporary)  # of a supervisor that was killed here
    os.mkdir(temporary)
    try:
        _make_room(places, sum(copy.record.size_bytes for copy in copies))
        for copy, place in zip(copies, places, strict=True):
            _copy(held[copy.global_rank], copy, place, until_s, lambda: False)
        for inside in dict.fromkeys([*map(os.path.dirname, places), temporary]):
            _sync(inside)
        if (number := _free([folder])) == MOST_NAMES:
            raise NotWrittenError(NO_NAME)
        name = name_of(folder, number)
        os.rename(temporary, name)
        _sync(os.path.dirname(folder))
        return name
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class PartFiles:
    """Files of a set, as far as this node has it: first beside their names, then under them. May block as disks do."""

    def __init__(self, tag: str = "") -> None:
        """tag: tells them from those that other nodes write in the same folder."""
        self._tag = tag
        self._targets: list[str] = []
        self._temporary: list[str] = []
        self._given: list[str] = []

    def prepare(
        self,
        held: Mapping[int, Readable],
        copies: Sequence[Copy],
        until_s: float,
        is_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write them beside their names. Raises OSError, NotWrittenError: what was written is for `drop`.

        is_off: whether it is not wanted any more.
        """
        self._targets = [copy.record.path for copy in copies]
        if any(not os.path.isabs(path) or path.endswith(os.sep) for path in self._targets):
            raise NotWrittenError("its path is none")
        _make_room(self._targets, sum(copy.record.size_bytes for copy in copies))
        for copy, target in zip(copies, self._targets, strict=True):
            self._temporary.append(temporary_of(target, self._tag))
            _copy(held[copy.global_rank], copy, self._temporary[-1], until_s, is_off)

    def free(self, number: int = 0) -> int:
        """The first number, from this one on, of which no name is taken; MOST_NAMES: there is none."""
        return _free(self._targets, number)

    def name(self, number: int) -> list[str] | None:
        """Give all of them their names, and take back others that were given; None: one is taken. Raises OSError."""
        self._take_back()
        names = [name_of(target, number) for target in self._targets]
        if not _link(self._temporary, names):
            return None
        self._given = names
        return names

    def _take_back(self) -> None:
        for path, name in zip(self._temporary, self._given, strict=False):
            with suppress(OSError):
                if os.path.samefile(path, name):
                    os.unlink(name)
        self._given = []

    def drop(self) -> None:
        """Leave nothing but what has its name."""
        for path in self._temporary:
            with suppress(OSError):
                os.unlink(path)
        self._targets, self._temporary, self._given = [], [], []


def _free(targets: Sequence[str], number: int = 0) -> int:
    while number < MOST_NAMES and any(os.path.lexists(name_of(target, number)) for target in targets):
        number += 1
    return number


def temporary_of(target: str, tag: str) -> str:
    """Where a file is written to, before it has its name."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.guardrun{tag and '-'}{tag}.tmp")


def _make_room(targets: Sequence[str], size_bytes: int) -> None:
    """Make the folders. Raises OSError; NotWrittenError where there is too little room."""
    for folder in dict.fromkeys(map(os.path.dirname, targets)):
        os.makedirs(folder, exist_ok=True)
        space = os.statvfs(folder)
        if space.f_bavail * space.f_frsize < size_bytes + SPARE_BYTES:
            raise NotWrittenError(f"{size_bytes / 1e9:.2g} GB are too much for the disk of {folder}")


def _copy(held: Readable, copy: Copy, path: str, until_s: float, is_off: Callable[[], bool]) -> None:
    """Raises OSError, NotWrittenError."""
    with suppress(FileNotFoundError):
        before = os.lstat(path)
        if stat.S_ISREG(before.st_mode) and before.st_uid == os.getuid():
            os.unlink(path)  # of a supervisor that was killed here
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, copy.mode)
    with open(fd, "wb", buffering=0) as file:
        offset, crc, size = 0, 0, copy.record.size_bytes
        while offset < size:
            chunk = held.read(copy.slot, min(CHUNK_BYTES, size - offset), offset)
            if not chunk:
                break
            crc = zlib.crc32(chunk, crc)
            offset += len(chunk)
            left = memoryview(chunk)
            while left:
                left = left[file.write(left) :]
            if time.monotonic() > until_s or is_off():
                raise NotWrittenError("the disk is too slow")
        if offset != size or crc != copy.record.crc:
            raise NotWrittenError(f"the copy of rank {copy.global_rank} is damaged")
        os.fsync(fd)


def name_of(target: str, number: int) -> str:
    """A file's own name (0), then others that tell where it is from."""
    if number == 0:
        return target
    return (".guardrun" if number == 1 else f".guardrun-{number}").join(os.path.splitext(target))


def _link(temporary: Sequence[str], names: Sequence[str]) -> bool:
    """Give all files their names; False: one is taken, and none has got any. Raises OSError."""
    if any(os.path.lexists(name) for name in names):
        return False
    given: list[str] = []
    try:
        for path, name in zip(temporary, names, strict=True):
            _name(path, name)
            given.append(name)
        for folder in dict.fromkeys(map(os.path.dirname, names)):
            _sync(folder)
    except OSError as error:
        for name in given:
            with suppress(OSError):
                os.unlink(name)
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _sync(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name(path: str, name: str) -> None:
    try:
        os.link(path, name)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; nobody else writes here now
        if os.path.lexists(name):
            raise FileExistsError(name) from None
        os.rename(path, name)
