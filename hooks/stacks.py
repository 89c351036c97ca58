"""faulthandler as a second way to a rank's stacks, for where ptrace is refused: a signal writes them to a file.

A real-time signal: users and Slurm have SIGUSR1 and SIGUSR2. The handler is C and needs no GIL.
"""

from __future__ import annotations

import faulthandler
import os
import signal

from guardrun.hooks.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from guardrun.hooks.rank import Rank

FIRST_CHOICE = 2
LAST_CHOICE = 12
"""Signals SIGRTMAX - 2 … SIGRTMAX - 12 are tried until one is nobody's."""


def start(rank: Rank) -> None:
    """Register the signal and name it on the board. Raises OSError where the file can't be opened."""
    path = os.path.join(rank.sockets, f"stacks-{rank.attempt}-{rank.global_rank}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for distance in range(FIRST_CHOICE, LAST_CHOICE + 1):
        signum = int(signal.SIGRTMAX) - distance
        if signal.getsignal(signum) == signal.SIG_DFL:
            faulthandler.register(signum, file=fd, all_threads=True, chain=False)
            rank.words[Field.DUMP_SIGNAL] = signum
            return
    os.close(fd)
    raise RuntimeError("no real-time signal is free")
