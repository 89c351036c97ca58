"""Disks and what lies on them, and file systems that answer from elsewhere: room, errors, I/O that does not end.

File systems whose answers come from another machine are disks.py's: asking those may take for ever.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import NamedTuple

from guardrun.supervisor.collect.host.file_systems import Answers, Mount, ask, parse_mountinfo, read_mounts
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import (
    below,
    known,
    list_folder,
    parse_count,
    read_count,
    read_text,
    unknown,
    why,
)

MAX_FILESYSTEMS = 64
MAX_DISKS = 256
_ALWAYS_FULL = frozenset(("squashfs", "iso9660", "erofs", "cramfs", "udf", "romfs", "efivarfs", "overlay"))
"""Made full and read-only, or (overlay) told by what they lie on."""
_OTHERS = (
    "/sys/",
    "/proc/",
    "/run/credentials/",
    "/run/user/",
    "/run/containerd/",
    "/snap/",
    "/var/snap/",
    "/var/lib/kubelet/",
    "/var/lib/docker/",
    "/var/lib/containers/",
)
"""What lies below is the kernel's, a user's session's, or a container's or pod's own, and comes and goes with it."""
_NO_DISKS = ("loop", "ram", "zram", "sr", "fd")


class DiskStat(NamedTuple):
    """The part of a line of /proc/diskstats that is used (Documentation/admin-guide/iostats.rst)."""

    name: str
    completed: int
    """Reads, writes, discards and flushes."""
    in_flight: int
    busy_s: float


class DisksSensor:
    """`disk:NAME` for block devices, `mount:POINT` for the file systems on this machine."""

    name = "disks"
    period_s = 20.0
    timeout_s = 10.0

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self.doing = ""

    def read(self, now_s: float) -> Readout:
        """From /proc/diskstats, /sys/block and statvfs(2) of local file systems; at most MAX_DISKS disks."""
        mountinfo, no_mounts = read_mountinfo(self._root)
        diskstats, no_disks = read_text(below(self._root, "/proc/diskstats"))
        folder = below(self._root, "/sys/block")
        disks = set(list_folder(folder))
        samples = []
        for stat in [stat for stat in parse_diskstats(diskstats) if stat.name in disks][:MAX_DISKS]:
            samples += known(
                f"disk:{stat.name}", completed=stat.completed, in_flight=stat.in_flight, busy_s=stat.busy_s
            )
            samples += read_disk(f"{folder}/{stat.name}", stat.name)
        for mount in local_filesystems(parse_mountinfo(mountinfo)):
            self.doing = f"asking {mount.point} for its room"
            samples += read_filesystem(mount, self._root)
        self.doing = ""
        trouble = "; ".join(text for text in (no_mounts, no_disks) if text)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, trouble=trouble)

    def close(self) -> None:
        """Nothing is held."""


def read_mountinfo(root: str = "/") -> tuple[str, str]:
    """The machine's mounts, and why they can't be read.

    Init's where it may be seen: under systemd's sandboxing this process sees read-only what is not.
    """
    text, _ = read_text(below(root, "/proc/1/mountinfo"))
    return (text, "") if text else read_text(below(root, "/proc/self/mountinfo"))


def parse_diskstats(text: str) -> list[DiskStat]:
    """Block devices of /proc/diskstats, partitions too, named as /sys/block does."""
    stats = []
    for line in text.splitlines():
        words = line.split()
        numbers = [parse_count(word) for word in words[3:]]
        if len(words) < 14 or words[2].startswith(_NO_DISKS) or None in numbers:
            continue
        n = [number or 0 for number in numbers]
        # Discards (from 4.18) and flushes (from 5.5) stand further back.
        completed = n[0] + n[4] + sum(n[11:12]) + sum(n[15:16])
        stats.append(DiskStat(words[2].replace("/", "!"), completed, n[8], n[9] / 1000))
    return stats


def read_disk(folder: str, name: str) -> list[Sample]:
    """A whole disk's own word on itself, in /sys/block."""
    is_read_only = read_count(f"{folder}/ro")
    samples = known(f"disk:{name}", is_read_only=is_read_only == 1) if is_read_only is not None else []
    errors = read_count(f"{folder}/device/ioerr_cnt")
    if errors is not None:
        # SCSI and SATA (drivers/scsi/scsi_sysfs.c), in hexadecimal; others tell theirs to the kernel's log alone.
        samples += known(f"disk:{name}", io_errors=errors)
    return samples


def local_filesystems(mounts: Iterable[Mount]) -> list[Mount]:
    """One mount of each file system that holds data here and may fill up; of several the one with the shortest path."""
    found: dict[str, Mount] = {}
    for mount in sorted(mounts, key=lambda mount: len(mount.point)):
        if mount.is_kernels_own or mount.is_remote or f"{mount.point}/".startswith(_OTHERS):
            continue
        if mount.kind in _ALWAYS_FULL and mount.point != "/":
            continue
        found.setdefault(mount.device or mount.point, mount)
    return sorted(found.values(), key=lambda mount: mount.point)[:MAX_FILESYSTEMS]


def read_filesystem(mount: Mount, root: str = "/") -> list[Sample]:
    """Room and inodes that users may still take; unknown where it may not be asked."""
    subject = f"mount:{mount.point}"
    samples = known(subject, is_read_only=mount.is_read_only, kind=mount.kind, source=mount.source)
    path = below(root, mount.point)
    try:
        room = os.statvfs(path)
    except OSError as error:
        return samples + unknown(subject, ("free_bytes", "total_bytes"), why(error, path))
    if not room.f_blocks:
        return samples
    samples += known(subject, free_bytes=room.f_bavail * room.f_frsize, total_bytes=room.f_blocks * room.f_frsize)
    if room.f_files:
        samples += known(subject, free_inodes=room.f_favail, total_inodes=room.f_files)
    return samples


# Remote mounts ------------------------------------------------------------------------------------------------------
# File systems whose answers come from elsewhere: whether they answer, and their room.
#
# Asked by children that may be left behind (collect/host/file_systems.py), some at a turn: each costs the start of a
# process.


AT_A_TURN = 4
ANSWER_S = 5.0
"""A file server may take its time; beyond this, whoever uses it waits noticeably."""


class MountsSensor:
    """`mount:POINT` for remote file systems."""

    name = "mounts"
    period_s = 60.0
    timeout_s = ANSWER_S + 5.0

    def __init__(self, read: Callable[[], list[Mount]] = read_mounts, answer_s: float = ANSWER_S) -> None:
        self._read_mounts = read
        self._answer_s = answer_s
        self._next = 0
        self._dead: set[str] = set()

    def read(self, now_s: float) -> Readout:
        """Asks AT_A_TURN mounts at most, each in bounded time; partial while others are left."""
        mounts = self._read_mounts()
        points = list(dict.fromkeys(mount.point for mount in mounts if mount.is_remote))
        chosen = self._choose(points)
        samples = []
        if chosen:
            answers = ask(chosen, self._answer_s, mounts)
            self._dead = {point for point in self._dead if point not in chosen and point in points} | set(answers.dead)
            samples = of_answers(answers)
        is_partial = len(chosen) < len(points)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, is_partial=is_partial)

    def _choose(self, points: list[str]) -> list[str]:
        """Those that did not answer last, since somebody waits for them, and then the others in turn."""
        dead = [point for point in points if point in self._dead][: AT_A_TURN - 1]
        others = [point for point in points if point not in dead]
        count = min(len(others), AT_A_TURN - len(dead))
        turn = [others[(self._next + number) % len(others)] for number in range(count)]
        self._next += count
        return dead + turn

    def close(self) -> None:
        """Nothing is held; a child that is stuck in a dead mount stays until that lets it go."""


def of_answers(answers: Answers) -> list[Sample]:
    """Samples of those that answered and those that did not; what may not be asked is left out."""
    samples = []
    for point, asked_s in answers.dead.items():
        samples += known(f"mount:{point}", is_answering=False, asked_s=float(asked_s))
    for room in {room.point: room for room in answers.rooms}.values():
        samples += known(f"mount:{room.point}", is_answering=True)
        if room.total_bytes:
            samples += known(f"mount:{room.point}", free_bytes=room.free_bytes, total_bytes=room.total_bytes)
    return samples
