"""Writes copies of ranks' states, kept in memory, out as a checkpoint, once the ranks have fallen.

Bytes are copied, and their checksum is compared; nothing of them is understood here. No file is written over, and none
of a set has its name before all of it is on the disk.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.spoiled import MARGIN_S
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.saving.snapshot_memory import Held
from guardrun.supervisor.saving.snapshot_sets import Copy, WholeSet, find_whole

WRITE_S = 300.0
CHUNK_BYTES = 8 << 20
SPARE_BYTES = 64 << 20
"""Of a disk, left free."""
MOST_NAMES = 100
MAX_WHY_CHARS = 300


class Written(NamedTuple):
    """What came of it."""

    step: int = 0
    paths: tuple[str, ...] = ()
    inodes: tuple[int, ...] = ()
    size_bytes: int = 0
    took_s: float = 0.0
    why: str = ""
    """Why nothing was written, or an older one than could have been; empty: there was nothing newer to write."""


class _NotWrittenError(Exception):
    """Why."""


def write_newest(
    held: Mapping[int, Held],
    ranks: Sequence[int],
    steps: Mapping[int, int],
    *,
    attempt: int,
    past_step: int,
    spoiled: Sequence[Spoiled],
    wall_s: Callable[[int], float],
    limit_s: float = WRITE_S,
) -> Written:
    """Write the newest whole set out, if its step is past that of the newest checkpoint. May block as disks do.

    held: by global rank. ranks: all of the attempt; steps: that they have finished in it. spoiled: when training had
    gone wrong (time.time()'s seconds, as wall_s makes them of CLOCK_MONOTONIC).
    """
    began_s = time.monotonic()
    copies: list[Copy] = []
    for number, one in held.items():
        with suppress(OSError):
            copies += one.copies(number)
    found, why = find_whole(copies, ranks, steps)
    newest = max((copy.record.step for copy in copies if copy.record.holds), default=0)
    lacking, why = (why if newest > past_step else ""), ""
    for whole in found:
        if whole.step <= past_step:
            break
        if any(_is_spoiled(whole, attempt, when, wall_s(whole.written_ns)) for when in spoiled):
            why = why or f"step {whole.step}: training had gone wrong by then"
            continue
        try:
            paths, inodes = _write(held, whole.copies, began_s + limit_s)
        except (OSError, ValueError, _NotWrittenError) as error:
            log.warning("snapshot_not_written", step=whole.step, error=str(error))
            why = why or f"step {whole.step}: {error}"[:MAX_WHY_CHARS]
            continue
        size = sum(copy.record.size_bytes for copy in whole.copies)
        return Written(whole.step, paths, inodes, size, time.monotonic() - began_s, why[:MAX_WHY_CHARS])
    return Written(why=(why or lacking)[:MAX_WHY_CHARS])


def _is_spoiled(whole: WholeSet, attempt: int, when: Spoiled, written_s: float) -> bool:
    if when.attempt == attempt:
        return whole.step >= when.from_step
    return when.since_s - (0.0 if when.why else MARGIN_S) <= written_s <= when.until_s


def _write(held: Mapping[int, Held], copies: Sequence[Copy], until_s: float) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """All of a set, or nothing. Raises OSError, _NotWrittenError."""
    targets = [copy.record.path for copy in copies]
    if any(not os.path.isabs(path) or path.endswith(os.sep) for path in targets):
        raise _NotWrittenError("its path is none")
    temporary: list[str] = []
    try:
        _make_room(targets, sum(copy.record.size_bytes for copy in copies))
        for copy, target in zip(copies, targets, strict=True):
            folder, name = os.path.split(target)
            temporary.append(os.path.join(folder, f".{name}.guardrun.tmp"))
            _copy(held[copy.global_rank], copy, temporary[-1], until_s)
        for names in _names(targets):
            if _link(temporary, names):
                return tuple(names), tuple(os.stat(name).st_ino for name in names)
        raise _NotWrittenError("all names that it might have are taken")
    finally:
        for path in temporary:
            with suppress(OSError):
                os.unlink(path)


def _make_room(targets: Sequence[str], size_bytes: int) -> None:
    """Make the folders. Raises OSError; _NotWrittenError where there is too little room."""
    for folder in dict.fromkeys(map(os.path.dirname, targets)):
        os.makedirs(folder, exist_ok=True)
        space = os.statvfs(folder)
        if space.f_bavail * space.f_frsize < size_bytes + SPARE_BYTES:
            raise _NotWrittenError(f"{size_bytes / 1e9:.2g} GB are too much for the disk of {folder}")


def _copy(held: Held, copy: Copy, path: str, until_s: float) -> None:
    """Raises OSError, _NotWrittenError."""
    with suppress(FileNotFoundError):
        before = os.lstat(path)
        if stat.S_ISREG(before.st_mode) and before.st_uid == os.getuid():
            os.unlink(path)  # of a supervisor that was killed here
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
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
            if time.monotonic() > until_s:
                raise _NotWrittenError("the disk is too slow")
        if offset != size or crc != copy.record.crc:
            raise _NotWrittenError(f"the copy of rank {copy.global_rank} is damaged")
        os.fsync(fd)


def _names(targets: Sequence[str]) -> Iterator[list[str]]:
    """The files' own names, then others that tell where they are from."""
    yield list(targets)
    for number in range(1, MOST_NAMES):
        mark = ".guardrun" if number == 1 else f".guardrun-{number}"
        yield [mark.join(os.path.splitext(path)) for path in targets]


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
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        for name in given:
            with suppress(OSError):
                os.unlink(name)
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _name(path: str, name: str) -> None:
    try:
        os.link(path, name)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; nobody else writes here now
        if os.path.lexists(name):
            raise FileExistsError(name) from None
        os.rename(path, name)
