"""Everything of an attempt that must not outlive it: found, ended, and waited for.

The launcher is the subreaper of all that ranks leave behind, so whatever descends from it, but for those it was
started with, its supervisor and Python's own helpers, belongs to the attempt: double-forked, in sessions of their own,
re-parented. Processes that left the tree are found by the run's mark in their environment. [notify] commands have a
mark of their own: they are never waited for, and may be at work when the run is over.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from guardrun.launcher.base.process_handles import send_signal, wait_for_end
from guardrun.launcher.base.processes import (
    DEAD,
    Stat,
    descendants,
    has_token,
    notify_token,
    read_all_stats,
    read_children,
    read_stat,
)

PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""


def become_subreaper() -> bool:
    """Have orphans below this process re-parented to it. False where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def python_helpers() -> set[int]:
    """Processes that Python's multiprocessing keeps in this one: they end with it, and it waits for them itself."""
    import sys

    helpers: set[int] = set()
    for module, instance, field in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        pid = getattr(getattr(sys.modules.get(module), instance, None), field, None)
        if isinstance(pid, int):
            helpers.add(pid)
    return helpers


class Sweeper:
    """Finds and ends what is left of an attempt.

    keep: pids that are never touched, nor anything below them: the supervisor, asked anew at each sweep; earlier:
    likewise, children that this process was started with.
    """

    def __init__(self, token: str, keep: Callable[[], Collection[int]], earlier: Collection[int] = ()) -> None:
        self._token = token
        self._keep = keep
        stats = (read_stat(pid) for pid in earlier)
        self._earlier = {(stat.pid, stat.start) for stat in stats if stat is not None}

    def find(self) -> list[Stat]:
        """The processes of the run that are alive now, the launcher and the supervisor left out."""
        me = os.getpid()
        stats = read_all_stats()
        kept = set(self._keep()) | python_helpers()
        kept |= {pid for pid, start in self._earlier if pid in stats and stats[pid].start == start}
        # The forkserver's children are ranks; everybody else's below it are kept with them.
        kept |= descendants(stats, kept - python_helpers())
        below = descendants(stats, [me])
        uid = os.getuid()
        return [
            stat
            for pid, stat in stats.items()
            if pid != me
            and pid not in kept
            and stat.state not in DEAD
            and (pid in below or (_owner(pid) == uid and has_token(pid, self._token)))
            and not has_token(pid, notify_token(self._token))
        ]

    def signal_all(self, signum: signal.Signals) -> list[Stat]:
        """Signal everything that is left; returns who that was."""
        found = self.find()
        for stat in found:
            with suppress(OSError):
                send_signal(stat.pid, stat.start, signum)
        return found

    def sweep(self, limit_s: float = 5.0) -> list[int]:
        """SIGKILL until nothing is left, within limit_s. Returns the pids that not even that ended."""
        deadline_s = time.monotonic() + limit_s
        while found := self.signal_all(signal.SIGKILL):
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return [stat.pid for stat in found]
            wait_for_end([(stat.pid, stat.start) for stat in found], min(remaining_s, 0.5))
        return []


def _owner(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def reap_orphans(managed: Collection[int]) -> None:
    """Collect children that have ended and that nobody else waits for: orphans this process became parent of.

    managed: children whose exit codes somebody waits for (ranks, the supervisor): waiting for those here, or for any
    child at all, would swallow their exit codes.
    """
    for pid in read_children(os.getpid()):
        if pid not in managed and pid not in python_helpers():
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
