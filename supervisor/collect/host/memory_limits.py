"""How much memory a process may use, and how much of that is used: the limit with least room, of all that hold for it.

The node's memory (MemTotal; used: what is not MemAvailable). Of each of its control groups, up to the root: v2
memory.max and memory.high, where the kernel begins to hold its processes up; v1 memory.limit_in_bytes. Its own limits
of address space and data (getrlimit(2): RLIMIT_AS, RLIMIT_DATA), which some schedulers set.

Page cache is given back before anything is killed, so a group's file pages are not counted as used, nor what the kernel
can reclaim of its own (memory.stat in admin-guide/cgroup-v2.rst; cgroup-v1/memory.rst, where `total_` includes the
groups below).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from guardrun.supervisor.collect.host.node_readings import parse_sizes
from guardrun.supervisor.collect.host.oom_kills import memory_groups, parse_cgroup, parse_mountinfo
from guardrun.supervisor.collect.host.procfs import read_bytes

FRESH_S = 1.0
"""Ranks that are read together share what was read of their groups."""
UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" by a number beyond this."""
_RECLAIMABLE = {
    1: ("total_inactive_file", "total_active_file"),
    2: ("inactive_file", "active_file", "slab_reclaimable"),
}
_FILES = {
    1: ("memory.usage_in_bytes", ("memory.limit_in_bytes",)),
    2: ("memory.current", ("memory.max", "memory.high")),
}


class Limit(NamedTuple):
    """Bytes."""

    limit: int
    used: int

    @property
    def room(self) -> int:
        """What is left."""
        return self.limit - self.used


class MemoryLimits:
    """Of processes of this node."""

    def __init__(self, root: str = "") -> None:
        """root: of /proc and /sys."""
        self._root = root
        self._mounts = parse_mountinfo(self._text("/proc/self/mountinfo"))
        self._read: dict[str, tuple[float, list[Limit]]] = {}
        """Per text of /proc/PID/cgroup: when, and what was read."""

    def nearest(self, pid: int, sizes: dict[int, dict[str, int]]) -> Limit | None:
        """The limit that leaves least to a process, and those below it that are given; None where none is known.

        sizes: of each of them by pid, as /proc/PID/status has them.
        """
        limits = list(self._of_groups(pid))
        for each, its in sizes.items():
            limits += own_limits(self._text(f"/proc/{each}/limits"), its)
        return min(limits, key=lambda limit: limit.room, default=None)

    def _of_groups(self, pid: int) -> list[Limit]:
        """And of the node."""
        cgroup, now_s = self._text(f"/proc/{pid}/cgroup"), time.monotonic()
        read_s, limits = self._read.get(cgroup, (-FRESH_S, []))
        if now_s - read_s >= FRESH_S:
            groups = memory_groups(parse_cgroup(cgroup), self._mounts)
            found = [self._of_group(folder, version) for folder, version in groups]
            limits = [limit for limit in (*found, of_node(self._text("/proc/meminfo"))) if limit is not None]
            self._read = {cgroup: (now_s, limits), **self._fresh(now_s)}
        return limits

    def _fresh(self, now_s: float) -> dict[str, tuple[float, list[Limit]]]:
        return {key: kept for key, kept in self._read.items() if now_s - kept[0] < FRESH_S}

    def _of_group(self, folder: str, version: int) -> Limit | None:
        used_file, limit_files = _FILES[version]
        limits = [int(text) for name in limit_files if (text := self._text(f"{folder}/{name}").strip()).isdigit()]
        limits = [limit for limit in limits if limit < UNLIMITED]
        used = self._text(f"{folder}/{used_file}").strip()
        if not limits or not used.isdigit():
            return None
        cache = reclaimable(self._text(f"{folder}/memory.stat"), _RECLAIMABLE[version])
        return Limit(min(limits), max(0, int(used) - cache))

    def _text(self, path: str) -> str:
        return (read_bytes(self._root + path) or b"").decode("ascii", "replace")


def reclaimable(stat: str, names: Iterable[str]) -> int:
    """Bytes of a memory.stat that the kernel gives back before it kills."""
    return sum(int(match[1]) for name in names if (match := re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)))


def of_node(meminfo: str) -> Limit | None:
    """Of /proc/meminfo; None without MemAvailable (kernels before 3.14)."""
    sizes = parse_sizes(meminfo)
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return Limit(total, total - free) if total and free is not None else None


def own_limits(limits: str, sizes: dict[str, int]) -> list[Limit]:
    """Soft limits of /proc/PID/limits that are set, and what counts against them."""
    names = (("Max address space", "VmSize"), ("Max data size", "VmData"))
    found = ((re.search(rf"^{name}\s+(\d+)", limits, re.MULTILINE), sizes.get(size)) for name, size in names)
    return [Limit(int(limit[1]), used) for limit, used in found if limit is not None and used is not None]
