"""File systems: which of them matter to a run, how much room they have, and whether they answer at all.

A call on a dead network mount may never return, and nothing ends a process that is inside of one. So the supervisor
touches no file system: a child of its own asks (`ask`), which is killed when its time is up and never waited for. A
mount whose child is still in there is not asked a second time, so there is one such child a mount at most.
/proc is no file system in this sense: reading links of /proc/PID/fd and /proc/PID/cwd asks nobody else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.collect.host.procfs import read_bytes

MAX_MOUNTS = 8
"""Asked at a time, each by a child."""
MAX_LINKS = 256
"""Open files looked at, a process."""
_MOUNTINFO_BYTES = 1 << 20
_ANSWER_BYTES = 1 << 16

_KERNELS_OWN = frozenset(
    (
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "ramfs",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    )
)
"""Types of file systems that hold no data and wait for nobody."""
_REMOTE = ("nfs", "cifs", "smb", "ceph", "fuse", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "afs", "gluster", "weka")
"""How types of file systems begin whose answers come from somewhere else."""
_READ_ONLY = frozenset(("ro", "emergency_ro", "shutdown"))
"""As mounted; what ext4 says from 6.15 on of itself after an error, or when it was shut down (fs/ext4/super.c)."""
_OCTAL = re.compile(r"\\([0-7]{3})")

# Follows each part of a path by itself and says where it is before it touches it: where the child does not come back,
# its last word names what it touched, whatever links led there. Fields end with a NUL, records with two.
# Nobody ends it once nobody waits for it any more: the kernel does (PR_SET_PDEATHSIG, SIGKILL; prctl(2)).
_ASKER = r"""
import ctypes, errno, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
def say(*fields):
    os.write(1, b"\0".join(os.fsencode(str(field)) for field in fields) + b"\0\0")
for path in sys.argv[2:]:
    at, rest, links = "/", path.split("/"), 0
    while rest:
        name = rest.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        below = os.path.join(at, name)
        say("at", below)
        try:
            target = os.readlink(below)
        except OSError as error:
            if error.errno != errno.EINVAL:
                break  # Not there yet: the folder that it would be in is what counts.
            at = below
            continue
        links += 1
        if links > 40:
            break
        at = "/" if target.startswith("/") else at
        rest = target.split("/") + rest
    say("at", at)
    try:
        room = os.statvfs(at)
    except OSError as error:
        say("no", path, error.strerror)
    else:
        has_inodes = room.f_files == 0 or room.f_favail > 0
        free = room.f_bavail * room.f_frsize if has_inodes else 0
        say("is", path, at, free, room.f_blocks * room.f_frsize)
"""


class Mount(NamedTuple):
    """A line of /proc/PID/mountinfo."""

    point: str
    kind: str
    """nfs4, ext4, fuse.sshfs, …"""
    source: str
    device: str = ""
    """Major and minor number, as in `254:0`: the same for all mounts of one file system."""
    is_read_only: bool = False
    """As mounted, or the file system itself (the kernel's answer to errors in it)."""

    @property
    def is_kernels_own(self) -> bool:
        """Whether it holds nobody's data, and so never waits."""
        return self.kind in _KERNELS_OWN

    @property
    def is_remote(self) -> bool:
        """Whether its answers come from another machine, or another process."""
        return self.kind.startswith(_REMOTE)


class Room(NamedTuple):
    """What a file system said of itself."""

    path: str
    """As it was asked for."""
    point: str
    """Of its mount."""
    free_bytes: int
    """That the user may still write; 0 where there are bytes but no inodes left."""
    total_bytes: int


class Answers(NamedTuple):
    """What came of asking."""

    rooms: list[Room]
    dead: dict[str, float]
    """Mount points that did not answer → for how many seconds they have been asked."""


def parse_mountinfo(text: str) -> list[Mount]:
    """Parse /proc/PID/mountinfo (proc(5)), in its order: of two at one point the later one covers the other."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 2:
            continue
        options = {*fields[5].split(","), *(rest[2].split(",") if len(rest) > 2 else ())}
        mounts.append(Mount(_unescape(fields[4]), rest[0], _unescape(rest[1]), fields[2], bool(options & _READ_ONLY)))
    return mounts


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def read_mounts() -> list[Mount]:
    """The mounts that this process sees; empty where /proc doesn't say."""
    data = read_bytes("/proc/self/mountinfo", _MOUNTINFO_BYTES) or b""
    return parse_mountinfo(data.decode("utf-8", "surrogateescape"))


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """The mount that an absolute path without links lies on; None where it is none of these."""
    found: Mount | None = None
    for mount in mounts:
        is_above = mount.point in ("/", path) or path.startswith(f"{mount.point}/")
        if is_above and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def read_links(pid: int) -> list[str]:
    """The files that a process has open, and its working folder; bounded. Empty where that may not be seen."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")[:MAX_LINKS]
    except OSError:
        names = []
    links = []
    for name in ("cwd", *(f"fd/{name}" for name in names)):
        try:
            target = os.readlink(f"/proc/{pid}/{name}")
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/", "/memfd:")):
            links.append(target.removesuffix(" (deleted)"))
    return links


def mounts_used_by(pids: Iterable[int], mounts: Sequence[Mount]) -> list[str]:
    """Mount points of all that these processes have open, without those of the kernel's own."""
    points = {mount.point for mount in mounts}
    folders: dict[str, None] = {}
    for pid in pids:
        for link in read_links(pid):
            # Thousands of files lie in few folders.
            folders[link if link in points else os.path.dirname(link)] = None
    found = (mount_of(folder, mounts) for folder in folders)
    return list(dict.fromkeys(mount.point for mount in found if mount is not None and not mount.is_kernels_own))


class _Stuck:
    """Children that did not come back in time; one a mount."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def since(self, point: str) -> float | None:
        """When the child that is still in there was started (time.monotonic()); None where there is none."""
        with self._lock:
            child, began = self._children.get(point, (None, 0.0))
            if child is None:
                return None
            if child.poll() is None:
                return began
            del self._children[point]
            return None

    def add(self, point: str, child: subprocess.Popen[bytes], began: float) -> None:
        with self._lock:
            self._children[point] = (child, began)


_stuck = _Stuck()


def ask(paths: Iterable[str], timeout_s: float, mounts: Sequence[Mount] | None = None) -> Answers:
    """Ask the file systems that these absolute paths lie on; takes timeout_s, and a moment to start the children.

    A path that doesn't exist is answered for by its nearest parent. What may not be asked is left out.
    """
    mounts = read_mounts() if mounts is None else mounts
    groups: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        if "\0" in path:
            continue
        mount = mount_of(os.path.normpath(path), mounts)
        groups.setdefault(mount.point if mount else "/", []).append(path)
    chosen = list(groups.items())[:MAX_MOUNTS]
    jobs = [lambda point=point, group=group: _ask_one(point, group, timeout_s, mounts) for point, group in chosen]
    rooms: list[Room] = []
    dead: dict[str, float] = {}
    # Starting a child waits for its program to be read: where that lies on the dead mount, the thread is abandoned.
    for (point, _), answer in zip(chosen, run_bounded(jobs, workers=MAX_MOUNTS, timeout_s=timeout_s + 1), strict=True):
        if answer is None:
            dead[point] = timeout_s
        elif isinstance(answer, Answers):
            rooms += answer.rooms
            dead.update(answer.dead)
    return Answers(rooms, dead)


def _ask_one(point: str, paths: list[str], timeout_s: float, mounts: Sequence[Mount]) -> Answers:
    began = time.monotonic()
    since = _stuck.since(point)
    if since is not None:
        return Answers([], {point: round(began - since, 1)})
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _ASKER, str(os.getpid()), *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
        start_new_session=True,
    )
    assert child.stdout is not None
    try:
        said = child.communicate(timeout=timeout_s)[0]
        return Answers(parse_answers(said, mounts)[0], {})
    except subprocess.TimeoutExpired as error:
        child.kill()
        rooms, at = parse_answers(error.output or b"", mounts)
        mount = mount_of(at, mounts) if at else None
        dead = mount.point if mount else point
        _stuck.add(dead, child, began)
        return Answers(rooms, {dead: round(time.monotonic() - began, 1)})
    finally:
        child.stdout.close()


def parse_answers(data: bytes, mounts: Sequence[Mount]) -> tuple[list[Room], str]:
    """What an asking child said: the rooms, and where it was last. A record that is cut short is left out."""
    rooms, at = [], ""
    for record in data[:_ANSWER_BYTES].split(b"\0\0")[:-1]:
        fields = [os.fsdecode(field) for field in record.split(b"\0")]
        if fields[0] == "at" and len(fields) == 2:
            at = fields[1]
        elif fields[0] == "is" and len(fields) == 5 and fields[3].isdigit() and fields[4].isdigit():
            mount = mount_of(fields[2], mounts)
            rooms.append(Room(fields[1], mount.point if mount else "/", int(fields[3]), int(fields[4])))
    return rooms, at
