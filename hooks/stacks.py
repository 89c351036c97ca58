"""faulthandler as a second way to a rank's stacks: by a signal where ptrace is refused, and by itself in a fatal one.

A real-time signal: users and Slurm have SIGUSR1 and SIGUSR2. The handlers are C and need no GIL.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal

from guardrun.hooks.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank import Rank

HIGH_FD = 900
"""From here on: a script that closes all descriptors gets low numbers for what it opens then."""
FIRST_CHOICE = 2
LAST_CHOICE = 12
"""Signals SIGRTMAX - 2 … SIGRTMAX - 12 are tried until one is nobody's."""


def start(rank: Rank) -> None:
    """Register the signal and name it on the board; have fatal signals leave their stacks.

    Raises OSError where a file can't be opened, RuntimeError where no signal is free.
    """
    _watch_fatal(rank)
    fd = _open(rank, "stacks")
    for distance in range(FIRST_CHOICE, LAST_CHOICE + 1):
        signum = int(signal.SIGRTMAX) - distance
        if signal.getsignal(signum) == signal.SIG_DFL:
            # faulthandler gives a finalising interpreter back what was before it: by default, a signal that is on its
            # way then would end the process.
            signal.signal(signum, signal.SIG_IGN)
            faulthandler.register(signum, file=fd, all_threads=True, chain=False)
            rank.words[Field.DUMP_SIGNAL] = signum
            return
    os.close(fd)
    raise RuntimeError("no real-time signal is free")


def _watch_fatal(rank: Rank) -> None:
    """Where a segmentation fault or an abort came from; the script's own faulthandler.enable() takes over."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=_open(rank, "fatal"), all_threads=True)


def _open(rank: Rank, kind: str) -> int:
    """Open a file that faulthandler may write to at any time, under a number that no file of the script's will get."""
    path = os.path.join(rank.sockets, f"{kind}-{rank.attempt}-{rank.global_rank}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # Few descriptors are allowed: this one must do.
        return fd
    os.close(fd)
    return high
