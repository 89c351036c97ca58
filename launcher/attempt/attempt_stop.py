"""Stopping an attempt: asked first, then ended, then everything it left behind; never waited for in one piece."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from guardrun.launcher.attempt.attempt import Attempt
from guardrun.launcher.base.processes import (
    DEAD,
    Stat,
    descendants,
    has_token,
    notify_token,
    read_all_stats,
    read_children,
    read_name,
    read_stat,
    send_signal,
    wait_for_end,
)

# Process sweep ------------------------------------------------------------------------------------------------------
# Everything of an attempt that must not outlive it: found, ended, and waited for.
#
# The launcher is the subreaper of all that ranks leave behind, so whatever descends from it, but for those it was
# started with, its supervisor and Python's own helpers, belongs to the attempt: double-forked, in sessions of their
# own, re-parented. Processes that left the tree are found by the run's mark in their environment. [notify] commands
# have a mark of their own: they are never waited for, and may be at work when the run is over.


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


# Attempt stop -------------------------------------------------------------------------------------------------------


KILL_LIMIT_S = 5.0
"""After SIGKILL. What is still there then is in uninterruptible sleep, and is reported as a survivor."""

LEAST_SWEEP_S = 0.5
"""For the rest, where ranks have used that up."""

LEFTOVER_GRACE_S = 3.0
"""For what is left of ranks that ended well: time to end by themselves after SIGTERM."""

LINGER_WORD_S = 2.0
"""What is still there then is told: helpers of Python's end within a moment of their parent."""

LINGER_POLL_S = 1.0
NAMED = 5
"""Processes that a line names."""

POLL_S = 0.02
"""How often a stop that is under way is looked after, besides when ranks end."""

LEFTOVER_POLL_S = 0.1
"""Likewise where all processes are looked through each time."""


@dataclass(frozen=True)
class Outcome:
    """How a stop ended."""

    stopped_by_us: list[int]
    survivors: list[int]
    took_s: float


class Stopping:
    """A stop under way: call `advance` until it returns an Outcome. Times are CLOCK_MONOTONIC seconds."""

    def __init__(
        self,
        attempt: Attempt,
        sweeper: Sweeper,
        now_s: float,
        grace_s: float,
        signum: signal.Signals = signal.SIGTERM,
        *,
        linger_s: float = 0.0,
        print_line: Callable[[str], object] = lambda text: None,
    ) -> None:
        """linger_s: for what ranks that ended well have left running (an upload): time before it is told to end."""
        self.attempt = attempt
        self._linger_s, self._print_line, self._is_told = linger_s, print_line, False
        self._sweeper = sweeper
        self._began_s = now_s
        self._kill_s = now_s + grace_s
        self._give_up_s: float | None = None
        self._leftover_s: float | None = None
        self._linger_until_s: float | None = None
        alive = attempt.alive()
        self._stopped_by_us = [rank.global_rank for rank in alive if rank.global_rank >= 0]
        if alive:
            attempt.signal(signum)
        elif _ended_well(attempt):
            self._linger_until_s = now_s + linger_s
        else:
            self._leftover_s = now_s

    @property
    def poll_s(self) -> float:
        """When to call advance again, at the latest."""
        if self._is_told and self._linger_until_s is not None:
            return LINGER_POLL_S
        return POLL_S if self._leftover_s is None and self._linger_until_s is None else LEFTOVER_POLL_S

    def hurry(self, now_s: float, grace_s: float = 0.0) -> None:
        """Wait no longer than grace_s from now before SIGKILL."""
        self._kill_s = min(self._kill_s, now_s + grace_s)
        if self._leftover_s is not None:
            self._leftover_s = min(self._leftover_s, now_s + grace_s)
        if self._linger_until_s is not None:
            self._linger_until_s = min(self._linger_until_s, now_s + grace_s)

    def end_waiting(self, now_s: float) -> bool:
        """Give what training left running no more time; False where nothing is being waited for."""
        if self._linger_until_s is None or not self._is_told:
            return False
        self._linger_until_s = now_s
        return True

    def forward(self, signum: signal.Signals) -> None:
        """Pass one more signal on to the ranks."""
        self.attempt.signal(signum)

    def advance(self, now_s: float) -> Outcome | None:
        """Do what is due. The caller polls the attempt for exits before."""
        if self._linger_until_s is not None and self._lingers(now_s, self._linger_until_s):
            return None
        if self._leftover_s is not None and self._sweeper.find() and now_s < self._leftover_s:
            return None
        is_killing = now_s >= self._kill_s
        if self.attempt.alive():
            if not is_killing:
                return None
            if self._give_up_s is None:
                self._give_up_s = now_s + KILL_LIMIT_S
            self.attempt.signal(signal.SIGKILL)
            if now_s < self._give_up_s:
                return None
        left_s = KILL_LIMIT_S if self._give_up_s is None else max(LEAST_SWEEP_S, self._give_up_s - now_s)
        survivors = self._sweeper.sweep(left_s)
        return Outcome(self._stopped_by_us, survivors, now_s - self._began_s)

    def _lingers(self, now_s: float, until_s: float) -> bool:
        """Whether something that well-ended ranks have left is still given time."""
        found = self._sweeper.find()
        if found and now_s < until_s:
            if not self._is_told and now_s >= self._began_s + LINGER_WORD_S:
                self._is_told = True
                self._print_line(
                    f"training has ended; waiting up to {self._linger_s:.0f} s for what it left: {_names(found)}"
                )
            return True
        self._linger_until_s, self._leftover_s = None, now_s
        if found:
            self._print_line(f"ending what training left running: {_names(found)}")
            self._sweeper.signal_all(signal.SIGTERM)
            self._leftover_s = now_s + LEFTOVER_GRACE_S
        return False


def _names(found: Sequence[Stat]) -> str:
    named = [f"{stat.pid} ({read_name(stat.pid)})" for stat in found[:NAMED]]
    return ", ".join(named) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _ended_well(attempt: Attempt) -> bool:
    return all(code == 0 for code in attempt.exitcodes().values())
