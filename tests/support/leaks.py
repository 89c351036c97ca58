"""What a test must not leave behind: processes, threads, file descriptors.

The test process is a subreaper (conftest), so a grandchild whose parent died shows up here too.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.processes import Process, kill, reap, reap_children

KINDS = ("process", "thread", "fd")

SETTLE_S = 20.0
"""How long something that is just ending may take to be gone."""

RESOURCE_TRACKER = "multiprocessing.resource_tracker"
ALLOWED_PROCESSES = (RESOURCE_TRACKER, "multiprocessing.forkserver")
"""Started once by the standard library and kept for the life of the interpreter."""

ALLOWED_THREADS = ("pydevd", "asyncio_")
"""Prefixes of names: a debugger's, and the default executor of asyncio that pytest's own loop may keep."""

ALLOWED_FDS = ("/dev/null", "/dev/urandom", "/dev/nvidia", "/dev/shm/nvidia")
"""Prefixes of targets: opened once by libraries and kept."""


_kept_pids: set[int] = set()
_kept_fds: set[tuple[int, str]] = set()
"""With where it leads: once it is closed, its number is somebody else's."""


def keep(pid: int, fd: int) -> None:
    """A process and a descriptor that stay for the life of this process, whichever test came first."""
    _kept_pids.add(pid)
    _kept_fds.add((fd, os.readlink(f"/proc/self/fd/{fd}")))


@dataclass(frozen=True)
class Snapshot:
    """What the test process holds at one moment."""

    processes: dict[tuple[int, int], Process]
    """By (pid, start): its children, zombies left out."""
    threads: dict[int, threading.Thread]
    fds: dict[int, str]
    """Target of /proc/self/fd, which names a socket or a pipe by its inode."""


def read_fds() -> dict[int, str]:
    """The open descriptors and where they lead."""
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fds[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return fds


def take_snapshot() -> Snapshot:
    """Read what there is now."""
    return Snapshot(
        processes={(process.pid, process.start): process for process in reap_children()},
        threads={thread.ident: thread for thread in threading.enumerate() if thread.ident is not None},
        fds=read_fds(),
    )


@dataclass(frozen=True)
class Leak:
    """Something of `kind` that was not there before."""

    kind: str
    text: str
    process: Process | None = None


def compare(before: Snapshot, after: Snapshot) -> list[Leak]:
    """What `after` holds beyond `before`, without what the tables above allow."""
    leaks = [
        Leak("process", str(process), process)
        for key, process in after.processes.items()
        if key not in before.processes
        and process.pid not in _kept_pids
        and not any(name in process.command for name in ALLOWED_PROCESSES)
    ]
    leaks += [
        Leak("thread", f"thread {thread.name!r}")
        for ident, thread in after.threads.items()
        if before.threads.get(ident) is not thread and not thread.name.startswith(ALLOWED_THREADS)
    ]
    leaks += [
        Leak("fd", f"descriptor {fd} → {target}")
        for fd, target in after.fds.items()
        if before.fds.get(fd) != target and (fd, target) not in _kept_fds and not target.startswith(ALLOWED_FDS)
    ]
    return leaks


@contextmanager
def child_handler_kept() -> Iterator[None]:
    """Put back what SIGCHLD did before.

    torch's DataLoader leaves a handler for the life of the process. With one, a later test's child that ends may
    interrupt zmq's Context.term(), which then keeps its descriptors, and says nothing.
    """
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGCHLD) is not before:
            signal.signal(signal.SIGCHLD, before)
            if (torchs := sys.modules.get("torch.utils.data._utils.signal_handling")) is not None:
                torchs._SIGCHLD_handler_set = False  # type: ignore[attr-defined]  # the next one sets it again


def find_leaks(before: Snapshot, allowed: frozenset[str] = frozenset(), settle_s: float = SETTLE_S) -> list[Leak]:
    """Leaks since `before` that stay for settle_s; processes among them are ended, so that the next test starts clean.

    allowed: kinds (of KINDS) that this test may leave.
    """
    deadline_s = time.monotonic() + settle_s
    collected_s = -float("inf")
    while True:
        leaks = [leak for leak in compare(before, take_snapshot()) if leak.kind not in allowed]
        if not leaks or time.monotonic() >= deadline_s:
            break
        if time.monotonic() - collected_s > 1.0:  # again: a cycle may become garbage only meanwhile
            gc.collect()
            collected_s = time.monotonic()
        else:
            time.sleep(0.02)
    for leak in leaks:
        if leak.process is not None:
            kill(leak.process)
            reap([leak.process])
    return leaks
