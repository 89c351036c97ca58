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
