"""Host memory of a rank and of the processes below it, from /proc/PID/status: what is theirs, and can't be given back.

Counted is anonymous memory (RssAnon) with what of it was swapped out (VmSwap): neither page cache nor mapped files, the
program's own included. The kernel has these numbers at hand; reading them waits for no lock of the process, and takes
some 30 µs.

A forked process has its parent's pages mapped, and each counts as its own, whether it has been copied since or not.
Telling them apart takes a walk through its page tables (smaps_rollup: 20 ms a gigabyte), which holds up the
process's own page faults, so it isn't done. Of processes below a rank, what each has come to hold beyond the least that
it was seen with is counted: that is what it has asked for itself. Copies on write don't show, then, but in what is used
of the limit.
"""

from __future__ import annotations

from guardrun.supervisor.collect.host.memory_limits import MemoryLimits
from guardrun.supervisor.collect.host.node_readings import parse_sizes
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.engine.model.events import MemoryUse

MAX_BELOW = 256
"""Processes below a rank that are read."""


class MemoryReader:
    """Of the ranks of one attempt."""

    def __init__(self, limits: MemoryLimits | None = None) -> None:
        self._limits = limits or MemoryLimits()
        self._least: dict[int, dict[tuple[int, int], int]] = {}
        """Per rank's pid: of the processes below it, as pid and start, the least that each was seen with."""

    def read(self, pid: int, table: ProcessTable) -> MemoryUse | None:
        """Of a rank's process, and those that were below it in the table; None where it is gone."""
        sizes = read_sizes(pid)
        if "RssAnon" not in sizes:
            return None
        below = [(child, table.stats[child].start) for child in table.descendants(pid, MAX_BELOW)]
        known = self._least.get(pid, {})
        least: dict[tuple[int, int], int] = {}
        grown: list[tuple[int, int]] = []
        found = {pid: sizes}
        shared = sizes.get("RssShmem", 0)
        for process in below:
            its = read_sizes(process[0])
            if "RssAnon" not in its:
                continue  # it has ended
            found[process[0]] = its
            held = _held(its)
            least[process] = min(held, known.get(process, held))
            grown.append((held - least[process], process[0]))
            shared = max(shared, its.get("RssShmem", 0))
        self._least[pid] = least
        most, largest = max(grown, default=(0, 0))
        # Of all that are alike, the one that has grown most comes to its own limits first.
        limit = self._limits.nearest(pid, {each: found[each] for each in (pid, largest) if each in found})
        return MemoryUse(
            own=_held(sizes),
            below=sum(more for more, _ in grown),
            largest=(largest, most) if most else (0, 0),
            processes=len(grown),
            shared=shared,
            limit=limit.limit if limit is not None else 0,
            used=limit.used if limit is not None else 0,
        )


def read_room(pid: int, limits: MemoryLimits | None = None) -> int | None:
    """Bytes that are left to a process below the limit with least room; None where none is known."""
    nearest = (limits or MemoryLimits()).nearest(pid, {pid: read_sizes(pid)})
    return nearest.room if nearest is not None else None


def read_sizes(pid: int) -> dict[str, int]:
    """All sizes of /proc/PID/status, in bytes; those of memory are missing of a process that is gone, or a zombie."""
    return parse_sizes((read_bytes(f"/proc/{pid}/status") or b"").decode("ascii", "replace"))


def _held(sizes: dict[str, int]) -> int:
    return sizes.get("RssAnon", 0) + sizes.get("VmSwap", 0)
