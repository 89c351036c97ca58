"""A source file's lines, of a file that anybody may have put there."""

from __future__ import annotations

import os
import re
import stat

MAX_SOURCE_BYTES = 2 * 1024 * 1024


class UnsuitableError(Exception):
    """It is no source file; its text goes on from the file's name."""


def read_source_lines(path: str) -> tuple[list[str], float]:
    """Lines of a plain file, and when it was changed last (wall clock, s). Raises OSError and UnsuitableError."""
    # Without O_NONBLOCK a pipe in its place would wait for a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnsuitableError("is no file")
        if status.st_size > MAX_SOURCE_BYTES:
            raise UnsuitableError("is too large to be shown")
        data = os.read(fd, MAX_SOURCE_BYTES)
    finally:
        os.close(fd)
    # Not splitlines(): Python itself knows no form feeds or Unicode separators as ends of lines.
    return re.split(r"\r\n|\r|\n", data.decode("utf-8", "replace")), status.st_mtime
