"""Signals for exactly the process that was meant: a pid may have been used again, a pid with its start time may not."""

from __future__ import annotations

import os
import signal

from guardrun.supervisor.collect.procfs import read_stat

HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
"""Some Python builds (against kernel headers before 5.3) lack them."""


def open_process(pid: int, start: int) -> int:
    """A pidfd for the process with that pid and start time; readable once it has ended.

    Raises ProcessLookupError where it is gone, OSError where the kernel gives no pidfds.
    """
    fd = os.pidfd_open(pid)
    stat = read_stat(pid)
    if stat is None or stat.start != start:
        os.close(fd)
        raise ProcessLookupError(3, "the process is gone")
    return fd


def send_signal(pid: int, start: int, signum: int) -> None:
    """Signal that very process. Raises OSError, ProcessLookupError where it is gone."""
    if HAS_PIDFD:
        fd = open_process(pid, start)
        try:
            signal.pidfd_send_signal(fd, signum)
            return
        finally:
            os.close(fd)
    stat = read_stat(pid)
    if stat is None or stat.start != start:
        raise ProcessLookupError(3, "the process is gone")
    os.kill(pid, signum)
