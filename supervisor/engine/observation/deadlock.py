"""A standstill that nothing is left to end: every thread of a rank, and of all below it, waits for one of the others.

Pure. A small world is taken: the rank's process and its descendants. Each of their threads waits, in a system call
without a time limit, for something that only somebody of that world could do: release a lock of its own process, write
to a pipe or a socket whose other end nobody else holds, end. Where not one thread is otherwise, none of it will ever
happen. Whatever is not known to be so (a timer, a poll, a socket to elsewhere, a thread of unknown make, a process that
may not be looked into) may end it, and then nothing is said: it costs patience, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from guardrun.supervisor.engine.model.looks import Frame


class Waits(str, Enum):
    """For what a thread waits, as its system call shows."""

    LOCK = "lock"
    """A futex of its own process, without a time limit: only a thread of the same process can wake it."""
    PIPE = "pipe"
    """It reads from a pipe or a local socket whose other end is held by processes of this world alone."""
    CHILD = "child"
    """For a process of its own to end."""
    STOPPED = "stopped"
    """The process is stopped: it does nothing until somebody lets it run."""
    OPEN = "open"
    """For anything else, or it runs: it may go on at any moment."""


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """One thread."""

    pid: int
    tid: int
    name: str = ""
    """The kernel's (comm)."""
    waits: Waits
    on: str = ""
    """The call's arguments, as far as they tell one wait from another."""
    switches: int = 0
    is_python: bool = False
    """It has Python frames."""
    is_monitor: bool = False
    """It only looks after something, and releases nobody's lock: a progress bar's, guardrun's own."""


HELPERS = (
    "gloo_tcp_loop",
    "pt_gloo_runloop",
    "pt_tcpstore",
    "pt_nccl_watchdg",
    "pt_nccl_heartbt",
    "pt_workerserver",
    "NCCL ",
    "cuda-EvtHandlr",
)
"""Threads that move what collectives wait for, and enter no Python (names as torch, gloo, NCCL and CUDA set them; the
kernel keeps 15 characters). Who waits in a collective is not judged here."""


def is_monitor(frames: Sequence[Frame]) -> bool:
    """Whether a thread, by its stack (innermost first), only looks after something, and has no lock of the script's.

    What it was started with tells: guardrun's wrappers are in the stacks of the script's own threads, too, wherever
    these save, or wait in a collective for another rank.
    """
    started_with = next((frame for frame in reversed(frames) if not frame.file.endswith("/threading.py")), None)
    return started_with is not None and (
        "/guardrun/hooks/" in started_with.file or started_with.file.endswith("/tqdm/_monitor.py")
    )


def is_closed(threads: list[Waiter], main: int) -> bool:
    """Whether nothing of this world can go on. main: the thread whose wait is asked about."""
    asked = next((one for one in threads if one.tid == main), None)
    if asked is None or asked.waits in (Waits.OPEN, Waits.STOPPED):
        return False
    return not any(may_go_on(one) for one in threads)


def may_go_on(thread: Waiter) -> bool:
    """Whether it does anything but wait, and might do something for the others."""
    return thread.waits is Waits.OPEN and not _is_helper(thread)


def _is_helper(thread: Waiter) -> bool:
    return thread.is_monitor or (not thread.is_python and thread.name.startswith(HELPERS))


def why(threads: list[Waiter], main: int) -> str:
    """The standstill in words: a clause after what the rank does."""
    asked = next(one for one in threads if one.tid == main)
    if asked.waits is Waits.PIPE:
        return "nobody who could still write holds the other end of what it reads from"
    if asked.waits is Waits.CHILD:
        stopped = sorted({one.pid for one in threads if one.waits is Waits.STOPPED})
        if stopped:
            return f"the process that it waits for is stopped ({stopped[0]})"
        return "the process that it waits for can go on no more than itself"
    return "no thread is left that could release what it waits for"


def key(threads: list[Waiter]) -> str:
    """Equal in two looks: nobody has done anything in between."""
    held = [one for one in threads if not _is_helper(one)]
    return ";".join(f"{one.pid}/{one.tid}:{one.waits.value}:{one.on}:{one.switches}" for one in held)
