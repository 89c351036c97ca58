"""Copies of what scripts save, in the supervisor's memory: written out where what was saved is torn later, or gone.

A script that saves over the same file again and again has no whole checkpoint while it does; one that is killed then
has none at all. What was judged whole is copied, in the background, once it is. If nobody can resume from its files any
more, nor from anything newer, the copy is written beside them, as what ranks keep by hooks.snapshot() is.

Files, and folders of torch.distributed.checkpoint, which may have any name; loaders of other folders, and of files with
companions, want theirs. And only where the script is told which to load: one that knows it would read the torn one.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from guardrun.hooks.wire.snapshot_index import HOLDS, Record
from guardrun.supervisor.base.background_work import be_nice
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.chooser import Choice, Chooser
from guardrun.supervisor.checkpoints.reading.folder_contents import FileStat, read_stat
from guardrun.supervisor.checkpoints.saved import resolve
from guardrun.supervisor.checkpoints.spoiled import is_time_spoiled
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import Checkpoint, SnapshotWritten
from guardrun.supervisor.saving.memory_room import NO_MEMORY, MemoryRoom
from guardrun.supervisor.saving.snapshot_files import (
    CHUNK_BYTES,
    MAX_WHY_CHARS,
    WRITE_S,
    NotWrittenError,
    write_folder,
    write_here,
)
from guardrun.supervisor.saving.snapshot_memory import GB
from guardrun.supervisor.saving.snapshot_sets import Copy, WholeSet

OF_FILES = ("file", "nanogpt", "lightning", "open_clip")
OF_FOLDERS = ("dcp",)
"""Formats whose checkpoints may have any name: a copy does not have that of its original."""
MAX_FILES = 4096
MB = 1_000_000
CHANGED = "it was written to meanwhile"


class _Found(NamedTuple):
    """A checkpoint that was judged whole, with what its files were then."""

    checkpoint: Checkpoint
    done: int
    """Steps that had been done."""
    stats: Mapping[str, FileStat]

    @property
    def size_bytes(self) -> int:
        return sum(known.size for known in self.stats.values())

    def is_there(self) -> bool:
        """Whether its files are what they were. May block as disks do."""
        return all(read_stat(path) == known for path, known in self.stats.items())


class _Memory:
    """The bytes of a checkpoint's files, one after the other: a descriptor for each might use up those there are."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("guardrun-saved", os.MFD_CLOEXEC)
        self.size_bytes = 0

    def add(self, data: bytes) -> None:
        """Raises OSError."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        self.size_bytes += len(data)

    def read(self, length: int, offset: int) -> bytes:
        """Raises OSError."""
        return os.pread(self._fd, length, offset)

    def close(self) -> None:
        """The kernel frees it."""
        os.close(self._fd)


class _File(NamedTuple):
    """One of them, as snapshot_files reads it."""

    memory: _Memory
    begin: int

    def read(self, slot: int, length: int, offset: int) -> bytes:
        """There is one copy."""
        return self.memory.read(length, self.begin + offset)


class _Kept(NamedTuple):
    """A checkpoint with its copies: one a file, by their numbers; first that of its path."""

    found: _Found
    memory: _Memory
    copies: tuple[Copy, ...]
    files: Mapping[int, _File]


class SavedCopies:
    """Of one run, where it is decided which checkpoint it resumes from."""

    def __init__(self, config: Mapping[str, Any], chooser: Chooser, warn: Callable[[str], object]) -> None:
        """warn: tells a person; for any thread."""
        table = config.get("checkpoint", {})
        self._most_bytes = int(table.get("mirror_gb", 0.0) * GB)
        self._bytes_per_s = float(table.get("mirror_mb_s", 0.0)) * MB
        is_asked = table.get("mirror") is True and config.get("policy", {}).get("act") is not False
        self.is_untold = is_asked and not _is_told_the_path(table)
        """It was asked for, and would be of no use."""
        self.is_wanted = is_asked and not self.is_untold and self._most_bytes > 0 and self._bytes_per_s > 0
        self._chooser, self._warn = chooser, warn
        self._room = MemoryRoom(self._most_bytes)
        self._kept: _Kept | None = None
        self._lock = threading.Lock()
        """Held while what is kept is exchanged, or written out."""
        self._work: queue.SimpleQueue[_Found | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._wanted: _Found | None = None
        """What is to be kept, once it is copied, or was to be; only the chooser's thread changes it."""
        self._end = threading.Event()
        self._told: set[str] = set()

    @property
    def has_any(self) -> bool:
        """Whether something is kept."""
        return self._kept is not None

    # The chooser's thread --------------------------------------------------------------------------------------------

    def seen(self, choice: Choice) -> None:
        """This is newest now: it is copied soon, if it can be."""
        checkpoint = choice.checkpoint
        kept, wanted = self._kept, self._wanted
        if not self.is_wanted or checkpoint is None or choice.doubt:
            return
        if wanted is not None and wanted.stats == choice.stats:
            return
        is_other = False
        if kept is not None and kept.found.checkpoint.path != checkpoint.path:
            if checkpoint.written_wall_s < kept.found.checkpoint.written_wall_s:
                return  # what is kept is newest, and is just being written over
            is_other = True
        may_be = choice.format is not None and _may_have_any_name(choice.format.name, checkpoint.path, choice.stats)
        found = _Found(checkpoint, self._chooser.steps_done(checkpoint), choice.stats) if may_be else None
        self._wanted = found
        if is_other or found is None:
            # Nothing writes over the newer one, and the older one may be removed on purpose; or it has companions now.
            self._exchange(None)
        if found is None:
            return
        self._work.put(found)
        if self._thread is None:
            # A daemon: a disk that does not answer must not keep the supervisor from ending.
            self._thread = threading.Thread(target=self._run, name="guardrun-saved-copies", daemon=True)
            self._thread.start()

    def write_lost(self, choice: Choice, avoid: Iterable[str], spoiled: Sequence[Spoiled]) -> SnapshotWritten | None:
        """Write out what is kept, if its files are not what they were, and choice is nothing as far. None: it is not.

        avoid, spoiled: as Chooser.choose has them. Nothing of an attempt is alive. The chooser knows of it then.
        """
        with self._lock:
            kept = self._kept
            if kept is None or not self._is_lost(kept.found, choice, avoid, spoiled):
                return None
            began_s = time.monotonic()
            checkpoint, stats = kept.found.checkpoint, kept.found.stats
            try:
                path, places = _write(kept, began_s + WRITE_S)
            except (OSError, ValueError, NotWrittenError) as error:
                log.warning("saved_copy_not_written", path=checkpoint.path, error=str(error))
                return SnapshotWritten(original=checkpoint.path, why=str(error)[:MAX_WHY_CHARS])
            self._kept = None  # the file is the copy now
        kept.memory.close()
        for copy, place in zip(kept.copies, places, strict=True):
            mtime_ns = stats[copy.record.path].mtime_ns
            with suppress(OSError):  # by which it is known of what data it is, and how new
                os.utime(place, ns=(mtime_ns, mtime_ns))
        for saved in places if path in places else [path]:
            self._chooser.saw_saved(saved, kept.found.done, checkpoint.written_wall_s, is_named=True)
        return SnapshotWritten(
            step=checkpoint.step,
            path=path,
            files=len(places),
            size_bytes=kept.found.size_bytes,
            took_s=round(time.monotonic() - began_s, 3),
            original=checkpoint.path,
        )

    def _is_lost(self, found: _Found, choice: Choice, avoid: Iterable[str], spoiled: Sequence[Spoiled]) -> bool:
        newest, path = choice.checkpoint, found.checkpoint.path
        if choice.doubt or found.is_there():
            return False
        if newest is not None and (newest.path == path or found.done <= self._chooser.steps_done(newest)):
            return False
        if set(choice.stats.values()) == set(found.stats.values()):
            return False  # it has another name by now
        if {resolve(one) for one in avoid} & {path, *found.stats}:
            return False  # the script could not load it as it was
        written_s = found.checkpoint.written_wall_s
        return not any(is_time_spoiled(written_s, when) for when in spoiled)

    # The loop's thread -----------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Once a second: the job's own memory comes first."""
        if self._kept is None or not self._room.is_short() or not self._lock.acquire(blocking=False):
            return
        try:
            kept, self._kept = self._kept, None
        finally:
            self._lock.release()
        if kept is not None:
            # To free many GB takes seconds.
            threading.Thread(target=kept.memory.close, name="guardrun-saved-free", daemon=True).start()
            self._warn_once("memory is short: no copy of what the script has saved is kept")

    def close(self) -> None:
        """Keep nothing any more."""
        self._end.set()
        self._work.put(None)

    # Its own thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        be_nice()
        while (found := self._work.get()) is not None and not self._end.is_set():
            if not self._work.empty():
                continue  # there is a newer one
            try:
                if why := self._copy(found):
                    self._warn_once(f"no copy of {found.checkpoint.path} is kept in memory: {why}")
            except (OSError, ValueError) as error:
                log.info("saved_copy_failed", path=found.checkpoint.path, error=str(error))
            except Exception:
                log.exception("saved_copy_failed")

    def _copy(self, found: _Found) -> str:
        """Why it cannot be kept; empty: it is, or will be once it is saved again. Raises OSError, ValueError."""
        kept, size = self._kept, found.size_bytes
        if why := self._room.why_not(kept.found.size_bytes if kept is not None else 0, size):
            if kept is None:
                return why
            self._exchange(None)  # its files are written over by now
            if why := self._room.why_not(0, size):
                return why
        memory, files, copies = _Memory(), dict[int, _File](), list[Copy]()
        began_s = time.monotonic()
        try:
            paths = sorted(found.stats, key=lambda path: (path != found.checkpoint.path, path))
            for number, path in enumerate(paths):
                files[number] = _File(memory, memory.size_bytes)
                crc, mode = self._read(path, found.stats[path], memory)
                record = Record(1, found.done, True, found.done, found.stats[path].size, 0, HOLDS, crc, path)
                copies.append(Copy(number, 0, record, mode=mode))
            if not found.is_there() or not self._exchange(_Kept(found, memory, tuple(copies), files)):
                raise ValueError(CHANGED)
        except BaseException:
            memory.close()
            raise
        took_s = time.monotonic() - began_s
        log.info("saved_copy_kept", path=found.checkpoint.path, bytes=found.size_bytes, took_s=round(took_s, 3))
        return ""

    def _read(self, path: str, known: FileStat, memory: _Memory) -> tuple[int, int]:
        """Copy a file; the checksum of its bytes, and its mode. Raises OSError, ValueError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb", buffering=0) as file:
            now = os.fstat(fd)
            if FileStat.of(now) != known:
                raise ValueError(CHANGED)
            began_s, offset, crc = time.monotonic(), 0, 0
            while offset < known.size:
                data = file.read(min(CHUNK_BYTES, known.size - offset))
                if not data:
                    raise ValueError(CHANGED)
                if self._room.is_short():
                    raise ValueError(NO_MEMORY)
                memory.add(data)
                offset, crc = offset + len(data), zlib.crc32(data, crc)
                ahead_s = offset / self._bytes_per_s - (time.monotonic() - began_s)
                if self._end.is_set() or (ahead_s > 0 and self._end.wait(ahead_s)):
                    raise ValueError("the run is over")
            return crc, stat.S_IMODE(now.st_mode)

    def _exchange(self, kept: _Kept | None) -> bool:
        """Keep that instead; False: it is not wanted any more."""
        with self._lock:
            if kept is not None and kept.found is not self._wanted:
                return False
            before, self._kept = self._kept, kept
        if before is not None:
            before.memory.close()
        return True

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


def _write(kept: _Kept, until_s: float) -> tuple[str, list[str]]:
    """The new checkpoint's path, and its files'. Raises OSError, ValueError, NotWrittenError."""
    folder = kept.found.checkpoint.path
    if folder in kept.found.stats:
        names, _ = write_here(kept.files)(WholeSet(kept.copies), until_s)
        return names[0], names
    new = write_folder(kept.files, kept.copies, folder, until_s)
    return new, [os.path.join(new, os.path.relpath(copy.record.path, folder)) for copy in kept.copies]


def _may_have_any_name(name: str, path: str, stats: Mapping[str, FileStat]) -> bool:
    """Whether a checkpoint of the format of that name is whole under others. path: its own; stats: of its files."""
    if path not in stats:
        return name in OF_FOLDERS and len(stats) <= MAX_FILES
    # What belongs to a file by its name is not found beside a copy.
    return (name == "sharded" and len(stats) <= MAX_FILES) or (name in OF_FILES and len(stats) == 1)


def _is_told_the_path(table: Mapping[str, Any]) -> bool:
    """Whether the script is told what to load; else it knows, and would load what is torn, or nothing."""
    words = [*table.get("resume_args", []), *table.get("resume_env", {}).values()]
    return any("{path}" in str(word) for word in words)
