"""Whether somebody reads from a checkpoint: the kernel's word (inotify), whoever reads it, in whatever language.

A read on this machine counts, and the end of an open that could only read (a mapped file is never "read"). Listing a
folder does not, nor does writing.
"""

from __future__ import annotations

import ctypes
import os
import queue
import struct
import threading
from collections.abc import Iterable, Iterator

MAX_WATCHES = 512
"""Folders and files; a user has some thousands in all (fs.inotify.max_user_watches)."""
ARM_S = 5.0
"""Folders that do not answer within so long are not watched: ranks wait for it, and so does whoever starts them."""
_ACCESS, _CLOSE_NOWRITE, _IS_FOLDER = 0x1, 0x10, 0x40000000
_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class OpenWatch:
    """Watches checkpoints, files or folders; close it."""

    def __init__(self, paths: Iterable[str]) -> None:
        """Raises OSError where the kernel does not watch, or not all of it."""
        self._paths: dict[int, str] = {}
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("inotify")
        try:
            for path in paths:
                for place in _places(path):
                    self._add(place, path)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Readable when something has happened."""
        return int(self._fd)

    def read(self) -> str:
        """The checkpoint that has been read from since the last call; empty: none has."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return ""
        found, at = "", 0
        while at + _EVENT.size <= len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            if mask & (_ACCESS | _CLOSE_NOWRITE) and not mask & _IS_FOLDER:
                found = found or self._paths.get(watch, "")
            elif mask & _OVERFLOW:
                found = found or next(iter(self._paths.values()), "")  # so much of nothing but reads
        return found

    def close(self) -> None:
        """End all watches. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _add(self, place: str, path: str) -> None:
        if len(self._paths) >= MAX_WATCHES:
            raise OSError(f"checkpoints of more than {MAX_WATCHES} folders")
        watch = _libc.inotify_add_watch(self._fd, os.fsencode(place), _ACCESS | _CLOSE_NOWRITE)
        if watch < 0:
            if ctypes.get_errno() == 2:
                return  # it has been removed
            raise _error(place)
        self._paths[watch] = path


def watch(paths: Iterable[str], limit_s: float = ARM_S) -> OpenWatch:
    """Begin to watch, by a thread of its own: on a dead file system it never comes back. Raises OSError."""
    made: queue.SimpleQueue[OpenWatch | OSError] = queue.SimpleQueue()
    is_late = threading.Event()

    def work() -> None:
        try:
            one = OpenWatch(paths)
        except OSError as error:
            made.put(error)
            return
        if is_late.is_set():
            one.close()
        else:
            made.put(one)

    threading.Thread(target=work, name="guardrun-opens", daemon=True).start()
    try:
        answer = made.get(timeout=limit_s)
    except queue.Empty:
        is_late.set()
        raise OSError("the checkpoints' folders do not answer") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _places(path: str) -> Iterator[str]:
    """A checkpoint's file, or its folders: a watch on a folder tells of the files in it."""
    yield path
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, names, _ in os.walk(path):
            for name in names:
                yield os.path.join(folder, name)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
