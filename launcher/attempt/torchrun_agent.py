"""Attempts that torchrun's own agent runs: found below it, watched, and never started or restarted by guardrun.

The ranks are the agent's children: which they are stands in the environment they were started with. Their exit codes
are the agent's to take; they are read from the zombies before it does. Where it was quicker, it tells those of the
ranks that failed, once it has ended the others; else what it does next tells: it ends well, or starts all anew.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from signal import SIGKILL, SIGTERM, Signals

from guardrun.launcher.attempt.torchrun_agent_child import AgentChild, Failure
from guardrun.launcher.base.processes import (
    DEAD,
    ProcessHandle,
    read_children,
    read_environment,
    read_stat,
    signal_group,
)
from guardrun.supervisor.engine.model.events import Rank

GATHER_S = 5.0
"""Ranks of an attempt that come this much later than the one before are not waited for: they have ended unseen."""

UNKNOWN_EXIT = 1
"""Taken for a rank whose exit code the agent took and did not tell, where nothing else failed."""

BY_AGENT = (-SIGTERM, -SIGKILL)
"""Exit codes of ranks that the agent ends once another has failed."""

MISSED_S = 35.0
"""An agent that has gone on for so long after a rank's end whose exit code was missed has taken it for a good one: it
gives the others 30 s to end, otherwise."""


@dataclass
class _Found:
    rank: Rank
    handle: ProcessHandle
    error_file: str
    exitcode: int | None = None
    missed_s: float = 0.0
    """When it was seen to be gone, its exit code taken by the agent; 0: it was not."""

    @property
    def is_alive(self) -> bool:
        return self.exitcode is None and not self.missed_s


@dataclass
class AgentAttempt:
    """The agent, and the ranks of its newest attempt."""

    child: AgentChild
    node: str
    world_size: int
    first_number: int
    """Of the agent's own attempt 0: more than 0 where the run is continued."""
    number: int = -1
    ranks: list[Rank] = field(default_factory=list)
    error_files: dict[int, str] = field(default_factory=dict)
    stderr_files: dict[int, str] = field(default_factory=dict)
    stderr_from: int = -1
    needs_polling: bool = True
    _found: dict[int, _Found] = field(default_factory=dict)
    _coming: dict[int, tuple[int, _Found]] = field(default_factory=dict)
    """Per pid: the agent's restart count and the rank, of an attempt that is only starting."""
    _since_s: float | None = None
    _held: list[tuple[Rank, int]] = field(default_factory=list)
    """Ended, and not told yet: the one that failed is not known."""
    _known: set[int] = field(default_factory=set)

    def find_next(self, now_s: float) -> bool:
        """Look for ranks of an attempt that is not known yet; True when it has come together."""
        self._gather(now_s)
        if not self._coming or self._since_s is None:
            return False
        newest = max(count for count, _ in self._coming.values())
        coming = [found for count, found in self._coming.values() if count == newest]
        if len(coming) < self.world_size and now_s - self._since_s < GATHER_S:
            return False
        if any(found.missed_s and found.exitcode is None for found in self._found.values()):
            return False  # `poll` tells those first
        number = self.first_number + newest
        self._close_found()
        self.number = number
        self._found = {found.rank.global_rank: found for found in coming}
        self.ranks = sorted((found.rank for found in coming), key=lambda rank: rank.global_rank)
        self.error_files = {found.rank.global_rank: found.error_file for found in coming if found.error_file}
        self._coming, self._since_s = {}, None
        return True

    @property
    def is_whole(self) -> bool:
        """Every rank of the newest attempt is known and alive: no other is to be looked for."""
        return sum(found.is_alive for found in self._found.values()) == self.world_size

    def take_unseen(self, exitcode: int) -> list[tuple[Rank, int]]:
        """Once the agent has ended: the ranks of a last attempt that was over before it was seen, and how they ended.

        exitcode: the agent's. Ranks are those that the agent ended for, or itself as rank 0; none where what was seen
        agrees with the agent's end.
        """
        failures = self.child.failures()
        is_mended = exitcode == 0 and any(self.exitcodes().values())
        are_known = {failed.pid for failed in failures} <= {rank.pid for rank in self.ranks}
        if self.number >= 0 and are_known and not is_mended:
            return []
        self.number = self.first_number if self.number < 0 else self.number + 1
        self._close_found()
        told = failures or [Failure(0, 0, self.child.pid, exitcode, "")]
        self.ranks = [
            Rank(global_rank=failed.global_rank, local_rank=failed.local_rank, pid=failed.pid, node=self.node)
            for failed in told
        ]
        self.error_files = {failed.global_rank: failed.error_file for failed in told if failed.error_file}
        return list(zip(self.ranks, (failed.exitcode for failed in told), strict=True))

    def _gather(self, now_s: float) -> None:
        children = read_children(self.child.pid)
        self._known &= set(children)
        for pid in children:
            if pid in self._known:
                continue
            environment = read_environment(pid)
            names = ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
            if not all(environment.get(name, "").isdigit() for name in names):
                continue  # none of the ranks, or one that is yet to exec
            global_rank, local_rank, count = (int(environment[name]) for name in names)
            self._known.add(pid)
            try:
                handle = ProcessHandle(pid)
            except ProcessLookupError:
                continue
            rank = Rank(global_rank=global_rank, local_rank=local_rank, pid=pid, node=self.node)
            found = _Found(rank, handle, environment.get("TORCHELASTIC_ERROR_FILE", ""))
            self._coming[pid] = (count, found)
            self._since_s = now_s

    def filenos(self) -> list[int]:
        """Of the agent, too; a process that the kernel gave no pidfd for has none here."""
        filenos = [self.child.fileno, *(found.handle.fileno for found in self._found.values() if found.is_alive)]
        return [fileno for fileno in filenos if fileno is not None]

    def poll(self) -> list[tuple[Rank, int]]:
        """The ranks that have ended since, and their exit codes; one that the agent took is told once it can be.

        Whom a signal has ended that the agent sends once one has failed is told after that one, also where the agent
        was quicker to take that one's exit code.
        """
        ended, self._held = self._held, []
        for found in self._found.values():
            if found.is_alive:
                self._read(found)
            elif found.exitcode is None:
                found.exitcode = self._missed_exitcode(found)
            else:
                continue
            if found.exitcode is not None:
                ended.append((found.rank, found.exitcode))
        if any(found.missed_s and found.exitcode is None for found in self._found.values()):
            self._held = [one for one in ended if one[1] in BY_AGENT]
            return [one for one in ended if one[1] not in BY_AGENT]
        return sorted(ended, key=lambda one: one[1] in BY_AGENT)

    def _read(self, found: _Found) -> None:
        try:
            found.exitcode = read_exitcode(found.rank.pid)
        except ProcessLookupError:
            found.missed_s = time.monotonic()
        if not found.is_alive:
            found.handle.close()

    def _missed_exitcode(self, found: _Found) -> int | None:
        """What the agent's words and doings say of an exit code that it took; None: nothing yet."""
        told = self.child.told_exitcodes()
        if found.rank.pid in told:
            return told[found.rank.pid]
        if not told.keys().isdisjoint(rank.pid for rank in self.ranks):
            return 0  # whom it has ended has failed for nobody
        agent = self.child.poll()
        if agent is None and not self._coming:
            return 0 if time.monotonic() - found.missed_s > MISSED_S else None
        if agent == 0 and not self._coming:
            return 0
        # Nothing was told. Whom it has ended by SIGTERM has failed for nobody; SIGKILL comes from elsewhere, as a rule.
        return 0 if set(self.exitcodes().values()) - {0, -SIGTERM} else UNKNOWN_EXIT

    def alive(self) -> list[Rank]:
        """The ranks that live; where none does but the agent, that: nothing is over before it."""
        living = [found.rank for found in self._found.values() if found.exitcode is None]
        if living or self.child.poll() is not None:
            return living
        return [Rank(global_rank=-1, local_rank=-1, pid=self.child.pid, node=self.node)]

    def exitcodes(self) -> dict[int, int]:
        """By global rank, of those whose exit code is known; one that the agent took may come later."""
        return {rank: found.exitcode for rank, found in self._found.items() if found.exitcode is not None}

    def signal(self, signum: Signals) -> None:
        """To the agent, which passes it on; SIGKILL to all."""
        self.child.signal(signum)
        if signum == SIGKILL:
            self.signal_ranks(signum)

    def signal_ranks(self, signum: Signals) -> None:
        """Signal the ranks' process groups: the agent takes their ends for failures."""
        for found in self._found.values():
            if found.is_alive:
                signal_group(found.rank.pid, signum)

    def managed(self) -> set[int]:
        """The agent's pid alone: the ranks' exit codes are the agent's to take."""
        return {self.child.pid}

    def helpers(self) -> set[int]:
        """None: the agent's children are its ranks."""
        return set()

    def describe_failure(self, exitcodes: dict[int, int], stopped_by_us: list[int]) -> str:
        """The agent has done that."""
        return ""

    def pass_error_on(self, exitcodes: dict[int, int]) -> None:
        """The agent has done that."""

    def close(self, is_everything_dead: bool) -> None:
        """Close all handles; an agent that has not begun ends with it."""
        self._close_found()
        for _, found in self._coming.values():
            found.handle.close()
        self._coming = {}
        self.child.close()

    def release(self) -> None:
        """Nothing was kept."""

    def _close_found(self) -> None:
        for found in self._found.values():
            if found.is_alive:
                found.handle.close()
        self._found = {}


def read_exitcode(pid: int) -> int | None:
    """The exit code of somebody else's child; None while it lives. Raises ProcessLookupError: it was waited for."""
    stat = read_stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return os.waitstatus_to_exitcode(stat.exit_status) if stat.state in DEAD else None
