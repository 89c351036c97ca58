"""One process, and never another that has its pid by now: watched, signalled, waited for.

By a pidfd; where the kernel gives none (ENOSYS before Linux 5.3, EPERM under older container profiles, no descriptor
left), by the pid with its start time, which a pid that is used again does not have: then ends are noticed by looking.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from guardrun.launcher.base.processes import DEAD, read_stat

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
