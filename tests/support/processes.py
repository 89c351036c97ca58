"""Processes as /proc shows them: who is alive, whose child, with which mark; and ending them by pidfd.

A zombie counts as dead everywhere here: it runs nothing, and where PID 1 does not reap it stays for ever.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)"""


def read_descriptors(pid: int) -> list[str]:
    """Where a process's descriptors lead; one that is closed meanwhile is left out."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(link))
    return found


@dataclass(frozen=True)
class Process:
    """A process at the moment it was read; (pid, start) names it for good."""

    pid: int
    ppid: int
    state: str
    start: int
    """starttime of /proc/PID/stat, in clock ticks since boot."""
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.state}, child of {self.ppid}): {self.command}"


def parse_stat(text: str) -> tuple[int, str, int, str]:
    """(ppid, state, starttime, name) of /proc/PID/stat; the name may itself hold spaces and brackets."""
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return int(fields[1]), fields[0], int(fields[19]), name


def _read(path: str) -> bytes:
    """A file of /proc, at once: this is done some ten times a test."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(descriptor, 1 << 16):
            text += part
        return text
    finally:
        os.close(descriptor)


def read_process(pid: int) -> Process | None:
    """The process, or None where there is none (any more)."""
    try:
        ppid, state, start, name = parse_stat(_read(f"/proc/{pid}/stat").decode(errors="replace"))
        arguments = _read(f"/proc/{pid}/cmdline").split(b"\0")
    except OSError:
        return None
    command = b" ".join(arguments).decode(errors="replace").strip() or f"[{name}]"
    return Process(pid=pid, ppid=ppid, state=state, start=start, command=command[:200])


def read_all() -> list[Process]:
    """Every process of the machine (of this pid namespace)."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in found if process is not None]


def is_alive(pid: int) -> bool:
    """Say whether a process runs (or could run again: stopped counts)."""
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def own_children() -> list[Process]:
    """The children of this process, zombies included; without reading all of /proc where the kernel lists them."""
    pids: list[bytes] = []
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # a thread that has ended meanwhile
            pids += _read(f"/proc/self/task/{thread}/children").split()
    if not pids and not os.path.exists("/proc/thread-self/children"):
        return [process for process in read_all() if process.ppid == os.getpid()]
    found = (read_process(int(pid)) for pid in pids)
    return [process for process in found if process is not None]


def descendants(pid: int) -> list[Process]:
    """Everything below pid, zombies included; pid itself left out."""
    children: dict[int, list[Process]] = {}
    for process in read_all():
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [process.pid for process in below]
    return found


def marked(name: str, value: str) -> list[Process]:
    """Living processes started with name=value in their environment, whatever became of their parents."""
    needle = f"{name}={value}".encode()
    found = []
    for process in read_all():
        if process.state in "ZX" or process.pid == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in variables:
            found.append(process)
    return found


def kill(process: Process, timeout_s: float = 5.0) -> bool:
    """SIGKILL exactly this process, never a later one with its pid; say whether it ended within timeout_s."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        current = read_process(process.pid)
        if current is None or current.start != process.start:
            return True
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return True
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)


def kill_marked(name: str, value: str, timeout_s: float = 60.0) -> list[Process]:
    """End every process that carries the mark, those that appear meanwhile too; return what had to be ended.

    Raises TimeoutError where some are left.
    """
    deadline_s = time.monotonic() + timeout_s
    ended: list[Process] = []
    while left := marked(name, value):
        for process in left:
            kill(process, timeout_s=1.0)
        ended += left
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"still alive after SIGKILL: {'; '.join(map(str, left))}")
    return ended


def become_subreaper() -> None:
    """Let orphans of this process's descendants become its own children, so that none gets out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_children() -> list[Process]:
    """Take the exit status of whatever has ended among our children: what it used counts as ours from then on.

    Returns those that live.
    """
    children = own_children()
    reap(process for process in children if process.state == "Z")
    return [process for process in children if process.state not in "ZX"]


def reap(processes: Iterable[Process]) -> None:
    """Take the exit status of zombies among our children, by pid."""
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pass
