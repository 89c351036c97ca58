"""A second way to a rank's stacks, where ptrace is refused: written by the rank itself.

The hooks' thread writes them when it is asked. While a thread keeps the GIL it can't; then, and only then, a signal
has faulthandler do so: that needs no GIL, and reads the frames of threads as they are. Of a thread that runs, they may
be half made: it would take the process with it (seen: once in a hundred times, beside two busy threads).

A real-time signal: users and Slurm have SIGUSR1 and SIGUSR2. A fatal signal has faulthandler write by itself.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import sys
import threading
from _thread import get_ident

from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from guardrun.hooks.rank.rank import Rank

HIGH_FD = 900
"""From here on: a script that closes all descriptors gets low numbers for what it opens then."""
FIRST_CHOICE = 2
LAST_CHOICE = 12
"""Signals SIGRTMAX - 2 … SIGRTMAX - 12 are tried until one is nobody's."""
MAX_FRAMES = MAX_THREADS = 100
"""As faulthandler has them."""


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


def give(rank: Rank) -> None:
    """Write the stacks of all threads but this one, as faulthandler would, the main one last. Raises OSError."""
    own, main = get_ident(), threading.main_thread().ident
    running = [pair for pair in sys._current_frames().items() if pair[0] != own]
    running.sort(key=lambda pair: pair[0] == main)
    lines = []
    for ident, innermost in running[-MAX_THREADS:]:
        lines.append(f"Thread 0x{ident:016x} (most recent call first):")
        frame: FrameType | None = innermost
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or "???"} in {code.co_name}')
            frame = frame.f_back
        lines.append("")
    # By its name: the script may have closed a descriptor, and opened a file of its own by that number.
    fd = os.open(_path(rank, "stacks"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, "\n".join(lines).encode(errors="backslashreplace"))
    finally:
        os.close(fd)


def _watch_fatal(rank: Rank) -> None:
    """Where a segmentation fault or an abort came from; the script's own faulthandler.enable() takes over."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=_open(rank, "fatal"), all_threads=True)


def _open(rank: Rank, kind: str) -> int:
    """Open a file that faulthandler may write to at any time, under a number that no file of the script's will get."""
    fd = os.open(_path(rank, kind), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # Few descriptors are allowed: this one must do.
        return fd
    os.close(fd)
    return high


def _path(rank: Rank, kind: str) -> str:
    return os.path.join(rank.sockets, f"{kind}-{rank.attempt}-{rank.global_rank}")
