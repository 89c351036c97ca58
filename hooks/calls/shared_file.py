"""Files of shared memory beside the board, made by a rank."""

from __future__ import annotations

import mmap
import os


def make_shared_file(path: str, size_bytes: int) -> mmap.mmap:
    """A file whose memory is really there, mapped: a full disk can never turn a write into SIGBUS. Raises OSError."""
    try:
        os.unlink(path)  # Of an earlier Python of the same rank.
    except FileNotFoundError:
        pass
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        return mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)


class SharedPage:
    """Such a file, as bytes and as words of 8 of them. The first word is its MAGIC, the second its writer's pid."""

    def __init__(self, path: str, size_bytes: int, magic: int, pid: int) -> None:
        """Raises OSError."""
        self._map = make_shared_file(path, size_bytes)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("q")
        self.words[1], self.words[0] = pid, magic

    def close(self) -> None:
        """Unmap it: nothing may be written any more."""
        self.words.release()
        self.bytes.release()
        self._map.close()
