"""A control group with little memory, of whichever version there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guardrun.supervisor.collect.host.oom_kills import parse_mountinfo

EATER = "import sys\nsys.stdin.readline()\nfat = [bytearray(1 << 20) for _ in range(400)]\n"
"""A program that takes more than there is, once it has been told to."""


@contextmanager
def memory_group(size_bytes: int = 48 << 20) -> Iterator[Path]:
    """Below the root of what is mounted here; skips where none can be made."""
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text())
    for mount in sorted(mounts, key=lambda mount: mount.version):
        path = Path(mount.point) / f"guardrun-test-{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        names = ["memory.limit_in_bytes"] if mount.version == 1 else ["memory.max", "memory.swap.max"]
        try:
            for name in names:
                (path / name).write_text("0" if "swap" in name else str(size_bytes))
        except OSError:
            path.rmdir()
            continue
        try:
            yield path
        finally:
            path.rmdir()
        return
    pytest.skip("no cgroup with memory limits can be made here")
