"""Is the memory of an attempt's dead free by now? What may be waited for before the next attempt, and how long. Pure.

A process's end and its memory's are two things: the driver takes devices apart after the process is gone, up to seconds
later, and for as long as a process cannot end (in D, in the driver). An attempt that is started into that runs out of
memory, for no fault of its own.

Waited for is what will be freed: memory of processes that have ended, of processes of this run that not even SIGKILL
has ended yet, and memory that nobody is named for as long as it shrinks. Memory of others is theirs, and is named.
Where NVML does not say who holds what (no driver, a device divided for others, process ids of another namespace),
nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from guardrun.supervisor.health.base.readings import Readout, parse_holders
from guardrun.supervisor.health.gpu.gpu_inventory import by_subject, number, of_node
from guardrun.supervisor.health.gpu.rank_device import trusts_pids

UNNAMED_BYTES = 2 << 30
"""Less than this is no process's: what a driver keeps for itself is some hundred MB."""
SHRINKS_BYTES = 64 << 20
"""Memory that nobody is named for must have lost this much since the last look to be waited for."""

ENDED = "ended"
OURS = "run"
FOREIGN = "foreign"


class MemoryHolder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who holds memory of a device that ranks had."""

    subject: str
    """`gpu:UUID`."""
    index: int
    pid: int = 0
    """0: nobody is named."""
    used_bytes: int | None = None
    """None: the driver does not say."""
    whose: str = ENDED
    """`ended`, `run` (a process of this run that cannot be ended), or `foreign`."""
    rank: int = -1
    """Global rank that it was; -1: none."""
    user: str = ""
    command: str = ""
    """Of a foreign one: its user, and the name of its program."""


class Owner(NamedTuple):
    """A process that lives."""

    user: str = ""
    command: str = ""


class Verdict(NamedTuple):
    """Whether to go on."""

    is_over: bool
    why: str
    """`free`, `unknown`, `limit`, `held`."""
    holders: tuple[MemoryHolder, ...] = ()


class MemoryRelease:
    """Feed it readouts until it is over. All times are of one clock, in seconds."""

    def __init__(
        self,
        devices: Mapping[str, int],
        ranks: Mapping[int, int],
        began_s: float,
        limit_s: float,
        *,
        survivors: Collection[int] = (),
        namespace: int = -1,
    ) -> None:
        """devices: those that ranks had → their index. ranks: pid → global rank. namespace: as trusts_pids has here.

        survivors: pids of this run that are alive still, after SIGKILL.
        """
        self._devices, self._ranks = devices, ranks
        self._survivors = frozenset(survivors)
        self._end_s = began_s + limit_s
        self._namespace = namespace
        self._unnamed: dict[str, int] = {}

    def judge(self, readout: Readout, find_owner: Callable[[int], Owner | None], now_s: float) -> Verdict:
        """find_owner: who a process id is of that lives; None: it has ended."""
        held = self._holders(readout)
        if held is None:
            return Verdict(True, "unknown")
        holders = [
            self._holder(subject, pid, used, find_owner(pid))
            for subject, by_pid in held.items()
            for pid, used in by_pid.items()
        ]
        unnamed = self._unnamed_holders(readout, held)
        named = (*holders, *unnamed)
        if not unnamed and all(holder.whose == FOREIGN for holder in holders):
            return Verdict(True, "free", named)
        if now_s >= self._end_s:
            return Verdict(True, "limit", named)
        return Verdict(False, "held", named)

    def _holders(self, readout: Readout) -> dict[str, dict[int, int | None]] | None:
        """By device, of those that ranks had; None where it is not known who holds what."""
        texts = {subject: values.get("holders") for subject, values in by_subject(readout).items()}
        if any(not isinstance(texts.get(subject), str) for subject in self._devices):
            return None
        held = {subject: parse_holders(text) for subject, text in texts.items() if isinstance(text, str)}
        namespace = of_node(readout, "pid_namespace")
        pids = {pid for by_pid in held.values() for pid in by_pid}
        known = [*self._ranks, *self._survivors]
        if not trusts_pids(namespace if isinstance(namespace, int) else None, self._namespace, pids, known):
            return None
        return {subject: held[subject] for subject in self._devices}

    def _holder(self, subject: str, pid: int, used: int | None, owner: Owner | None) -> MemoryHolder:
        holder = MemoryHolder(subject=subject, index=self._devices[subject], pid=pid, used_bytes=used)
        if owner is None:
            return msgspec.structs.replace(holder, rank=self._ranks.get(pid, -1))
        if pid in self._survivors:
            return msgspec.structs.replace(holder, whose=OURS, rank=self._ranks.get(pid, -1))
        return msgspec.structs.replace(holder, whose=FOREIGN, user=owner.user, command=owner.command)

    def _unnamed_holders(self, readout: Readout, held: Mapping[str, Mapping[int, int | None]]) -> list[MemoryHolder]:
        """Memory in use of which no process is told, where it has become less since the last look."""
        found = []
        for subject, values in by_subject(readout).items():
            by_pid, used = held.get(subject), number(values, "memory_used_bytes")
            if by_pid is None or used is None or None in by_pid.values():
                continue
            unnamed = int(used) - sum(size or 0 for size in by_pid.values())
            before = self._unnamed.get(subject, 1 << 62)
            self._unnamed[subject] = unnamed
            if unnamed >= UNNAMED_BYTES and before - unnamed >= SHRINKS_BYTES:
                found.append(MemoryHolder(subject=subject, index=self._devices[subject], used_bytes=unnamed))
        return found
