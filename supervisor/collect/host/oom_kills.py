"""Whether the kernel killed for want of memory: cgroup counters, and the kernel's log where it may be read.

Counters: `oom_kill` in memory.oom_control (cgroup v1; documented in the kernel's
Documentation/admin-guide/cgroup-v1/memory.rst), in memory.events (v2; admin-guide/cgroup-v2.rst), and in /proc/vmstat
for the whole machine. The log: records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg), whose pids are those of the
outermost pid namespace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from guardrun.supervisor.collect.host.procfs import read_bytes

_KILLED = re.compile(r"(?:Memory cgroup out of memory|Out of memory[^:]*): Kill(?:ed)? process (\d+)")
_KMSG_RECORD_BYTES = 8192
"""The kernel's own limit for one record; a shorter read fails with EINVAL."""
_KMSG_RECORDS = 20_000


class MemoryMount(NamedTuple):
    """Where a hierarchy with memory accounting is mounted."""

    root: str
    """The cgroup that is seen at the mount point: not `/` in containers without a cgroup namespace."""
    point: str
    version: int


def parse_oom_kills(text: str) -> int:
    """The `oom_kill N` line of memory.oom_control, memory.events or vmstat; -1 without one (kernels before 4.13)."""
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else -1


def parse_cgroup(text: str) -> dict[int, str]:
    """The paths of /proc/PID/cgroup that matter: {1: path in v1's memory hierarchy, 2: path in v2}."""
    paths = {}
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def parse_mountinfo(text: str) -> list[MemoryMount]:
    """Cgroup mounts with memory accounting in /proc/self/mountinfo (proc(5): ` - ` ends the optional fields)."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        if kinds[0] == "cgroup2":
            mounts.append(MemoryMount(fields[3], fields[4], 2))
        elif kinds[0] == "cgroup" and "memory" in kinds[-1].split(","):
            mounts.append(MemoryMount(fields[3], fields[4], 1))
    return mounts


def memory_groups(cgroups: dict[int, str], mounts: Iterable[MemoryMount]) -> list[tuple[str, int]]:
    """Folders of a process's memory cgroups, each with its version: the nearest first, v1's before v2's (hybrids)."""
    folders = []
    for mount in sorted(mounts, key=lambda mount: mount.version):
        cgroup = cgroups.get(mount.version)
        if cgroup is None:
            continue
        below = cgroup
        if mount.root != "/" and (cgroup == mount.root or cgroup.startswith(mount.root + "/")):
            below = cgroup[len(mount.root) :]
        parts = [part for part in below.split("/") if part not in ("", "..")]
        folders += [("/".join([mount.point, *parts[:depth]]), mount.version) for depth in range(len(parts), -1, -1)]
    return folders


def counter_paths(cgroups: dict[int, str], mounts: Iterable[MemoryMount]) -> list[str]:
    """Files that may hold a process's OOM counter, the one nearest to it first."""
    names = {1: "memory.oom_control", 2: "memory.events"}
    return [f"{folder}/{names[version]}" for folder, version in memory_groups(cgroups, mounts)]


def _read_text(path: str) -> str:
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def find_oom_counter(pid: int | str = "self") -> str:
    """The file with the OOM counter of a process's cgroup, /proc/vmstat where there is none, empty where unknown."""
    cgroups = parse_cgroup(_read_text(f"/proc/{pid}/cgroup"))
    candidates = counter_paths(cgroups, parse_mountinfo(_read_text("/proc/self/mountinfo")))
    for path in [*candidates, "/proc/vmstat"]:
        if parse_oom_kills(_read_text(path)) >= 0:
            return path
    return ""


def parse_oom_pid(record: str) -> int:
    """The process that a kernel log record says was killed for want of memory; -1 where it says no such thing."""
    match = _KILLED.search(record.partition(";")[2])
    return int(match[1]) if match else -1


class KernelLog:
    """The kernel's log from now on. Without the right to read it, it names nobody."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def is_readable(self) -> bool:
        """Whether /dev/kmsg could be opened, and has not failed since."""
        return self._fd >= 0

    def read_oom_pids(self) -> list[int]:
        """Processes killed for want of memory since the last call."""
        pids = []
        for _ in range(_KMSG_RECORDS if self.is_readable else 0):
            try:
                record = os.read(self._fd, _KMSG_RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # Records were overwritten before we read them; the next read gives the oldest kept.
            except OSError:
                self.close()
                break
            if not record:
                break
            if (pid := parse_oom_pid(record.decode("utf-8", "replace"))) >= 0:
                pids.append(pid)
        return pids

    def close(self) -> None:
        """From then on it names no process. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OomWatch:
    """OOM kills since an attempt began, in the cgroups of the supervisor and of the ranks.

    Counters are found while the processes live: a dead process has no cgroup to ask for.
    """

    def __init__(self, kernel_log: KernelLog | None = None) -> None:
        self._log = kernel_log or KernelLog()
        self._baseline: dict[str, int] = {}
        self._pids: list[int] = []

    def attempt_started(self, pids: Iterable[int]) -> None:
        """Count from here."""
        self._log.read_oom_pids()
        self._pids = []
        self._baseline = {}
        self.watch(pids)

    def watch(self, pids: Iterable[int]) -> None:
        """Also count in the cgroups that these processes are in now."""
        everybody: list[int | str] = ["self", *pids]
        for pid in everybody:
            path = find_oom_counter(pid)
            if path and path not in self._baseline:
                self._baseline[path] = parse_oom_kills(_read_text(path))

    def kills(self) -> int:
        """OOM kills since attempt_started; the machine's are only counted where no cgroup counts; -1 unknown."""
        own = {path: count for path, count in self._baseline.items() if path != "/proc/vmstat"} or self._baseline
        grown = [now - before for path, before in own.items() if (now := parse_oom_kills(_read_text(path))) >= 0]
        return sum(growth for growth in grown if growth > 0) if grown else -1

    def pids(self) -> list[int]:
        """Processes that the kernel log named since attempt_started."""
        self._pids += self._log.read_oom_pids()
        return list(self._pids)

    def close(self) -> None:
        """Close the kernel's log; the cgroups' counters hold nothing open."""
        self._log.close()
