"""What processes wait for in the kernel: the file of their system call, and the mount that does not answer.

The node's readings are taken beside a look, because a dead mount is only known to be dead after a while.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from guardrun.supervisor.collect.host.file_systems import (
    Answers,
    Mount,
    mount_of,
    mounts_used_by,
    read_mounts,
)
from guardrun.supervisor.collect.host.node_readings import MOUNT_TIMEOUT_S, read_readings
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import read_waited_file, read_wchan
from guardrun.supervisor.engine.model.looks import ProcessLook, Reading

_REMOTE = re.compile(r"fuse|request_wait|nfs|rpc|ceph|cifs|smb|lustre|ll_|gpfs|p9_|v9fs|beegfs")
"""In the names of kernel functions in which processes wait for a file system that is somewhere else."""
_MARGIN_S = 0.5


class Background:
    """Readings of the node, taken in a thread of their own while something else is done."""

    def __init__(self, folders: Iterable[str], pids: Sequence[int], table: ProcessTable | None = None) -> None:
        self.mounts: list[Mount] = []
        self._done: queue.SimpleQueue[tuple[list[Reading], Answers]] = queue.SimpleQueue()
        self._deadline = time.monotonic() + MOUNT_TIMEOUT_S + _MARGIN_S
        folders, pids = list(folders), list(pids)

        def read() -> None:
            self.mounts = read_mounts()
            self._done.put(read_readings(folders, pids, table=table, mounts=self.mounts))

        # A daemon: where even starting a child never returns, nobody waits for this thread.
        self._thread = threading.Thread(target=read, name="readings", daemon=True)
        self._thread.start()

    def wait(self) -> tuple[list[Reading], Answers]:
        """What was read; nothing where even that took too long. At most MOUNT_TIMEOUT_S and a half after the start."""
        try:
            result = self._done.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except queue.Empty:
            return [], Answers([], {})
        self._thread.join(_MARGIN_S)
        return result


def explain(look: ProcessLook, dead: Iterable[str], mounts: Sequence[Mount]) -> ProcessLook:
    """The same process with what it waits for, as far as that can be told; dead: mounts that do not answer."""
    points = list(dead)
    if look.state != "D" and not (points and look.state == "S"):
        return look
    file = read_waited_file(look.pid)
    mount = mount_of(file, mounts) if file else None
    if mount is not None and mount.point in points:
        return msgspec.structs.replace(look, file=file, dead_mount=mount.point)
    if look.state != "D":
        return look
    return msgspec.structs.replace(look, file=file, dead_mount="" if file else _suspect(look, points, mounts))


def _suspect(look: ProcessLook, points: list[str], mounts: Sequence[Mount]) -> str:
    """Which dead mount a process in D is in, where its call names a path, which is not to be seen from outside."""
    if not points:
        return ""
    used = [point for point in mounts_used_by([look.pid], mounts) if point in points]
    if used:
        return used[0]
    is_remote = bool(_REMOTE.search(look.wchan or read_wchan(look.pid)))
    return points[0] if len(points) == 1 or is_remote else ""
