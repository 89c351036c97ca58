"""Pages of shared memory that ranks write (hooks/calls/shared_file.py), read while they do; some may be none."""

from __future__ import annotations

import os
import struct


class PageFile:
    """One page; it may not be there (yet). Close it."""

    def __init__(self, path: str | os.PathLike[str], size_bytes: int, magic: int, head: struct.Struct) -> None:
        """magic: the first word of its head."""
        self._path = os.fspath(path)
        self._size_bytes, self._magic, self._head = size_bytes, magic, head
        self._fd = -1
        self.seen = 0
        """How far its reader has come; 0 again once the rank has made another."""

    def head(self) -> tuple[int, ...] | None:
        """The words of its head; None where there is no page."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            data, stat = os.pread(self._fd, self._head.size, 0), os.fstat(self._fd)
        except OSError:
            return None
        if stat.st_nlink == 0:  # the rank's Python has begun anew, and made another
            self.close()
            self.seen = 0
            return None
        if len(data) != self._head.size or stat.st_size != self._size_bytes:
            return None
        words = self._head.unpack(data)
        return words if words[0] == self._magic else None

    def read(self, size: int, at: int) -> bytes:
        """So many bytes from a place on, or fewer; only once there is a head."""
        return os.pread(self._fd, size, at)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
