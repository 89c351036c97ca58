"""The last words of ranks that share the launcher's stderr, read back where that is a regular file.

`nohup guardrun … > log 2>&1` and a batch script's output file are: nothing has to stand between a rank and its log to
know what native code said before it aborted. Lines that begin with a rank (`[rank3]:`, as torch has them) are that
rank's; of the others nobody can say whose they are, and the engine takes them only for a node's one rank that aborted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from typing import NamedTuple

from guardrun.supervisor.collect.ranks.error_files import STDERR_BYTES, keep_end, native_words

_OF_RANK = re.compile(r"^\[rank(\d{1,9})\]:")


class SharedLog(NamedTuple):
    """The launcher's stderr, a regular file."""

    launcher_pid: int
    begin: int
    """Where the attempt's own part begins, in bytes."""

    @property
    def path(self) -> str:
        """Opens the very file, also after it was renamed."""
        return f"/proc/{self.launcher_pid}/fd/2"

    def folder(self) -> str:
        """Where the file lies, which takes no look at its file system; empty where nothing tells."""
        try:
            return os.path.dirname(os.readlink(self.path))
        except OSError:
            return ""


class Words(NamedTuple):
    """What a shared log says."""

    of_ranks: Mapping[int, str]
    """Per global rank: the end of its own lines, as `keep_end` has it."""
    of_anybody: str
    """The last words of native code among the other lines; empty where there are none."""


NO_WORDS = Words({}, "")


def read_words(log: SharedLog) -> Words:
    """What the attempt's ranks said last. Call only where the file's mount answers; nothing where it can't be read."""
    try:
        with open(log.path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return NO_WORDS
            begin = log.begin if log.begin <= status.st_size else 0  # truncated meanwhile
            first = max(begin, status.st_size - STDERR_BYTES)
            file.seek(first)
            data = file.read(STDERR_BYTES)
            return parse_words(data if first == begin else data.partition(b"\n")[2])
    except OSError:
        return NO_WORDS


def parse_words(data: bytes) -> Words:
    """Tell ranks' lines apart. Pure."""
    of_ranks: dict[int, list[str]] = {}
    others: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        found = _OF_RANK.match(line)
        lines = of_ranks.setdefault(int(found[1]), []) if found else others
        lines.append(line)
    return Words(
        {rank: keep_end("\n".join(lines)) for rank, lines in of_ranks.items()},
        native_words("\n".join(others)),
    )
