"""How many files a process has open, how many it may, and what the newest are.

The kernel gives out the lowest free number, so that what is opened and never closed fills the table up to the number of
all that is open: those just below it are the newest. Only they are looked at, and only where many are open.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice

from guardrun.supervisor.base.printable import make_printable
from guardrun.supervisor.collect.host.procfs import parse_files_limit, read_bytes
from guardrun.supervisor.engine.model.events import OpenFiles

MAX_LISTED = 20_000
"""Descriptors that are counted one by one, where the kernel doesn't say how many there are: some 5 µs each."""
NEWEST = 200
KINDS = 3
MAX_NAME = 120
"""Characters: of a longer path the end is kept."""


def read_open_files(pid: int) -> OpenFiles | None:
    """Of a process; None where that can't be known. Nothing is opened or asked of a file system."""
    count = count_descriptors(pid)
    if not count:
        return None
    limits = read_bytes(f"/proc/{pid}/limits") or b""
    files = OpenFiles(count, parse_files_limit(limits.decode("ascii", "replace")) or 0)
    return OpenFiles(count, files.limit, summarize(_read_newest(pid, count))) if files.are_many else files


def count_descriptors(pid: int) -> int | None:
    """Of a process; None where that is not to be seen.

    Linux says it as the folder's size from 6.2 on (fs/proc/fd.c, proc_fd_getattr); before, that is 0.
    """
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or count_one_by_one(pid)
    except OSError:
        return None


def count_one_by_one(pid: int, most: int = MAX_LISTED) -> int | None:
    """Likewise, on any kernel; None where there are more than `most`. Raises OSError."""
    with os.scandir(f"/proc/{pid}/fd") as entries:
        count = sum(1 for _ in islice(entries, most + 1))
    return count if count <= most else None


def _read_newest(pid: int, count: int) -> list[str]:
    """What the descriptors with the highest numbers stand for, by number from above."""
    targets = []
    for number in range(count - 1, max(-1, count - 1 - NEWEST), -1):
        try:
            targets.append(os.readlink(f"/proc/{pid}/fd/{number}"))
        except OSError:
            continue  # closed, gone, or not for us to see
    return targets


def summarize(targets: Iterable[str]) -> list[tuple[str, int]]:
    """What most descriptors are, by the targets of their links (proc(5)): sockets, pipes, files by path or folder."""
    kinds = Counter(_kind(target) for target in targets)
    found: Counter[str] = Counter()
    for kind, count in kinds.items():
        # A path that is open twice is opened again and again; else what they have in common is the folder.
        is_single = count == 1 and kind.startswith("/")
        found[f"files in {os.path.dirname(kind)}" if is_single else kind] += count
    return [(make_printable(_shortened(kind)), count) for kind, count in found.most_common(KINDS)]


def _kind(target: str) -> str:
    """`socket:[8123]` → sockets; `anon_inode:[eventfd]` → eventfd; `/tmp/x (deleted)` → /tmp/x."""
    if target.startswith("/"):
        return target.removesuffix(" (deleted)")
    name, _, rest = target.partition(":")
    return rest.strip("[]") if name == "anon_inode" else f"{name}s"


def _shortened(kind: str) -> str:
    return kind if len(kind) <= MAX_NAME else f"…{kind[1 - MAX_NAME :]}"
