"""Control groups: how often their CPU quota was used up, what is left of their memory, their processes; v1 and v2.

Limits hold for everything below, so the groups above a process are read with its own. Formats: the kernel's
Documentation/scheduler/sched-bwc.rst, admin-guide/cgroup-v1/{memory,pids}.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from guardrun.supervisor.collect.host.node_readings import parse_cgroup
from guardrun.supervisor.collect.host.oom_kills import parse_oom_kills
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import below, known, parse_count, read_text, read_word

MAX_PIDS = 64
MAX_GROUPS = 128
MAX_DEPTH = 12
UNLIMITED = 1 << 60
"""cgroup v1 says "no limit" by a number beyond this."""


class Hierarchy(NamedTuple):
    """Where a hierarchy of control groups is mounted."""

    root: str
    """The group that is seen at the mount point: not `/` in containers without a cgroup namespace."""
    point: str
    controllers: frozenset[str]
    """Of version 1; empty for version 2's one hierarchy."""


class Group(NamedTuple):
    """One control group, with the folder that its files of one controller lie in."""

    path: str
    folder: str
    controller: str
    is_v2: bool


class CgroupSensor:
    """`cgroup:PATH` for the groups of some processes and those above."""

    name = "cgroup"
    period_s = 10.0
    timeout_s = 5.0

    def __init__(self, root: str = "/", pids: Callable[[], Iterable[int]] | None = None) -> None:
        """pids: whose groups; None: this process's own."""
        self._root = root
        self._pids = pids or (lambda: (os.getpid(),))

    def read(self, now_s: float) -> Readout:
        """From the groups' own files; at most MAX_GROUPS groups of at most MAX_PIDS processes."""
        mountinfo, trouble = read_text(below(self._root, "/proc/self/mountinfo"))
        hierarchies = parse_hierarchies(mountinfo)
        groups: dict[Group, None] = {}
        for pid in list(self._pids())[:MAX_PIDS]:
            text, _ = read_text(below(self._root, f"/proc/{pid}/cgroup"))
            groups.update(dict.fromkeys(groups_of(text, hierarchies)))
        samples = [sample for group in list(groups)[:MAX_GROUPS] for sample in read_group(group, self._root)]
        if not hierarchies and not trouble:
            trouble = "no control groups are mounted"
        return Readout(sensor=self.name, at_s=now_s, samples=samples, trouble=trouble)

    def close(self) -> None:
        """Nothing is held."""


def parse_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """Control group mounts in /proc/self/mountinfo (proc(5): ` - ` ends the optional fields)."""
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset() if kinds[0] == "cgroup2" else frozenset(kinds[-1].split(","))
        found.append(Hierarchy(fields[3], fields[4], controllers))
    return found


def groups_of(cgroup: str, hierarchies: Iterable[Hierarchy]) -> list[Group]:
    """A process's groups by its /proc/PID/cgroup, the nearest first, then those above."""
    paths = parse_cgroup(cgroup)
    found = []
    for hierarchy in hierarchies:
        is_v2 = not hierarchy.controllers
        for controller in ("cpu", "memory", "pids"):
            path = paths.get("") if is_v2 else paths.get(controller)
            if path is None or not (is_v2 or controller in hierarchy.controllers):
                continue
            if hierarchy.root != "/" and (path == hierarchy.root or path.startswith(hierarchy.root + "/")):
                path = path[len(hierarchy.root) :] or "/"
            parts = [part for part in path.split("/") if part not in ("", "..")][:MAX_DEPTH]
            for depth in range(len(parts), -1, -1):
                own = "/" + "/".join(parts[:depth])
                folder = hierarchy.point + ("" if own == "/" else own)
                found.append(Group(own, folder, controller, is_v2))
    return found


def read_group(group: Group, root: str = "/") -> list[Sample]:
    """What one group says; nothing where the controller does not limit it."""
    subject, folder = f"cgroup:{group.path}", below(root, group.folder)
    if group.controller == "cpu":
        return parse_cpu_stat(subject, read_text(f"{folder}/cpu.stat")[0])
    if group.controller == "pids":
        return _limited(subject, "threads", folder, "pids.current", "pids.max")
    if group.is_v2:
        samples = _limited(subject, "memory_bytes", folder, "memory.current", "memory.max")
        kills = parse_oom_kills(read_text(f"{folder}/memory.events")[0])
    else:
        names = ("memory.usage_in_bytes", "memory.limit_in_bytes")
        samples = _limited(subject, "memory_bytes", folder, *names)
        kills = parse_oom_kills(read_text(f"{folder}/memory.oom_control")[0])
    # At the root the machine's are counted; its sensor is another.
    return samples + (known(subject, oom_kills=kills) if kills >= 0 and group.path != "/" else [])


def parse_cpu_stat(subject: str, text: str) -> list[Sample]:
    """cpu.stat of either version: periods, and those in which the quota was used up; nothing without a quota."""
    values = {
        words[0]: number
        for line in text.splitlines()
        if len(words := line.split()) == 2 and (number := parse_count(words[1])) is not None
    }
    if not values.get("nr_periods"):
        return []
    throttled_s = values.get("throttled_time", 0) / 1e9 + values.get("throttled_usec", 0) / 1e6
    return known(
        subject,
        periods=values["nr_periods"],
        throttled_periods=values.get("nr_throttled", 0),
        throttled_s=round(throttled_s, 3),
    )


def _limited(subject: str, what: str, folder: str, used_file: str, limit_file: str) -> list[Sample]:
    """How much is used of what a group has, and how much that is; nothing where it has no limit (v2: `max`)."""
    most = parse_count(read_word(f"{folder}/{limit_file}"))
    if most is None or most >= UNLIMITED:
        return []
    used = parse_count(read_word(f"{folder}/{used_file}"))
    return known(subject, **{f"{what}_limit": most}) + (known(subject, **{what: used}) if used is not None else [])
