"""Processes as the launcher sees them: what /proc tells of them, and handles that never mean another one."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

TOKEN_VARIABLE = "GUARDRUN_TOKEN"

DEAD = "ZX"
"""States of a process that is no more: a zombie is dead."""


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here (man 5 proc)."""

    pid: int
    state: str
    ppid: int
    pgrp: int
    session: int
    start: int
    """Clock ticks after boot: with the pid, it names one process for good."""
    exit_status: int = 0
    """Of a zombie, as waitpid would have it; readable by its user alone."""


def parse_stat(text: str) -> Stat:
    """Parse /proc/PID/stat. The command, in parentheses, may hold anything, parentheses too."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    exit_status = int(fields[49]) if len(fields) > 49 else 0
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), exit_status)


def read_stat(pid: int) -> Stat | None:
    """The process's stat, or None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return parse_stat(file.readall().decode(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def read_name(pid: int) -> str:
    """What a process is called, for a line: `python upload.py`; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = [word.decode("utf-8", "replace") for word in file.read(4096).rstrip(b"\0").split(b"\0") if word]
    except OSError:
        return ""
    return short_command(words)


def short_command(argv: Sequence[str]) -> str:
    """A process's program and, of a Python, its script or module; no further argument, since they may hold secrets."""
    if not argv:
        return ""
    program = os.path.basename(argv[0])
    if "python" not in program:
        return program[:120]
    kept = [program]
    for argument in argv[1:]:
        kept.append(argument)
        if argument == "-c":
            kept[-1] = "-c …"
            break
        if not argument.startswith("-"):
            break
    return " ".join(kept)[:120]


def signal_group(pid: int, signum: signal.Signals) -> None:
    """Signal a rank's process group where it leads one, else (functions as ranks) the rank.

    A stopped process does not see a signal before it continues, SIGKILL aside: SIGTERM and its like are followed by
    SIGCONT.
    """
    stat = read_stat(pid)
    if stat is None:
        return
    kill = os.killpg if stat.pgrp == pid else os.kill
    with suppress(ProcessLookupError, PermissionError):
        kill(pid, signum)
        if stat.state in "Tt" and signum != signal.SIGKILL:
            kill(pid, signal.SIGCONT)


def read_all_stats() -> dict[int, Stat]:
    """Every process that can be seen."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def read_boot_id() -> str:
    """This boot of the machine; empty where it cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def descendants(stats: dict[int, Stat], roots: Iterable[int]) -> set[int]:
    """All processes below roots, roots left out."""
    children: dict[int, list[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found: set[int] = set()
    open_ = list(roots)
    while open_:
        for pid in children.get(open_.pop(), ()):
            if pid not in found:
                found.add(pid)
                open_.append(pid)
    return found


def read_children(pid: int) -> list[int]:
    """A process's own children. The kernel's list where it keeps one, else by everybody's parent."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
        return found
    except OSError:
        return [stat.pid for stat in read_all_stats().values() if stat.ppid == pid]


def read_environment(pid: int) -> dict[str, str]:
    """What a process was started with; empty where it may not be asked, or is gone."""
    pairs = _read_environ(pid).decode(errors="surrogateescape").split("\0")
    return {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}


def _read_environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def has_token(pid: int, token: str) -> bool:
    """Say whether a process was started with the run's mark. False where it may not be asked: it isn't ours then.

    Every process of the user is asked, again and again while an attempt ends: only where the mark occurs is it parsed.
    """
    mark = f"{TOKEN_VARIABLE}={token}".encode(errors="surrogateescape")
    return mark in _read_environ(pid) and read_environment(pid).get(TOKEN_VARIABLE) == token


def notify_token(token: str) -> str:
    """The mark of a run's [notify] commands, which outlive it."""
    return f"notify-{token}"


# Process handles ----------------------------------------------------------------------------------------------------
# One process, and never another that has its pid by now: watched, signalled, waited for.
#
# By a pidfd; where the kernel gives none (ENOSYS before Linux 5.3, EPERM under older container profiles, no descriptor
# left), by the pid with its start time, which a pid that is used again does not have: then ends are noticed by looking.


LOOK_EVERY_S = 0.02
"""How often a process is looked at that no descriptor tells of, while somebody waits for its end."""
_REFUSED = (errno.EPERM, errno.ENOSYS, errno.EINVAL)
"""What a kernel, or a filter, answers that does not let pidfds be used."""


class ProcessHandle:
    """A process that lived when this was made; close it."""

    def __init__(self, pid: int, start: int | None = None) -> None:
        """start: as /proc/PID/stat has it, in clock ticks; None: whoever has the pid now.

        Raises ProcessLookupError where that process is gone.
        """
        self.pid = pid
        self._pidfd = _open(pid)
        stat = read_stat(pid)
        if stat is None or start not in (None, stat.start):
            self.close()
            raise _gone()
        self._start = stat.start

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fileno(self) -> int | None:
        """Readable once it has ended; None: look (`has_ended`)."""
        return self._pidfd

    def has_ended(self) -> bool:
        """A zombie has."""
        if self._pidfd is not None:
            return bool(_poll([self._pidfd], 0.0))
        stat = read_stat(self.pid)
        return stat is None or stat.start != self._start or stat.state in DEAD

    def send(self, signum: int) -> None:
        """Signal that very process. Raises ProcessLookupError where it is gone, PermissionError."""
        if self._pidfd is not None and hasattr(signal, "pidfd_send_signal"):
            try:
                signal.pidfd_send_signal(self._pidfd, signum)
                return
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
        if self.has_ended():
            raise _gone()
        os.kill(self.pid, signum)

    def close(self) -> None:
        """Close the pidfd, if there is one; the process goes on. May be called twice."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def send_signal(pid: int, start: int, signum: int) -> None:
    """Signal the process with that pid and start time. Raises ProcessLookupError where it is gone, PermissionError."""
    with ProcessHandle(pid, start) as handle:
        handle.send(signum)


def wait_for_end(processes: Iterable[tuple[int, int | None]], limit_s: float) -> None:
    """Wait until all of these (pid, start) have ended, at most limit_s."""
    deadline_s = time.monotonic() + limit_s
    with ExitStack() as stack:
        alive: list[ProcessHandle] = []
        for pid, start in processes:
            with suppress(ProcessLookupError):
                alive.append(stack.enter_context(ProcessHandle(pid, start)))
        while alive and (left_s := deadline_s - time.monotonic()) > 0:
            watched = [handle.fileno for handle in alive if handle.fileno is not None]
            _poll(watched, left_s if len(watched) == len(alive) else min(left_s, LOOK_EVERY_S))
            alive = [handle for handle in alive if not handle.has_ended()]


def _open(pid: int) -> int | None:
    """Raises ProcessLookupError."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError):  # AttributeError: a Python that was built against older headers
        return None


def _poll(pidfds: list[int], timeout_s: float) -> list[tuple[int, int]]:
    poller = select.poll()
    for pidfd in pidfds:
        poller.register(pidfd, select.POLLIN)
    return poller.poll(timeout_s * 1000)


def _gone() -> ProcessLookupError:
    return ProcessLookupError(errno.ESRCH, "the process is gone")
