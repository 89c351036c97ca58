"""The memory that ranks keep copies of their state in: opened here, too, so that it outlives them; granted, taken back.

Once a second, on the loop's thread. What is granted leaves a share of every limit free (control groups, the node);
where less than half of that is left, all of it is taken back for the attempt: the job's own memory comes first.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.snapshot_index import (
    NAME,
    PAGE_BYTES,
    SLOTS,
    parse_header,
    parse_record,
    record_offset,
)
from guardrun.supervisor.collect.host.memory_limits import Limit, MemoryLimits
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.collect.ranks.sampler import Sampler
from guardrun.supervisor.node.rank_message_ingest import RankMessageIngest
from guardrun.supervisor.node.run_context import LoopContext
from guardrun.supervisor.saving.snapshot_sets import Copy

GRANT_LEAVES = 10
"""A tenth of each limit stays free; …"""
KEEP_LEAVES = 20
"""… where less than a twentieth is, everything is taken back."""
GB = 1_000_000_000


class Asked(NamedTuple):
    """What a rank's board says of this memory; bytes."""

    global_rank: int
    wanted: int
    granted: int
    held: int


def decide_grants(asked: Sequence[Asked], most_bytes: int, limit: Limit | None) -> tuple[dict[int, int], str]:
    """What ranks may have from now on, those alone for which that changes; and why one may not have what it wants.

    most_bytes: for all of them. limit: the one with least room; None: not known. Pure.
    """
    grants: dict[int, int] = {}
    total = sum(max(0, one.granted) for one in asked)
    # What is granted and not taken yet is no free memory any more.
    pending = sum(max(0, one.granted - one.held) for one in asked)
    why = ""
    for one in asked:
        more = one.wanted - one.granted
        if one.granted < 0 or more <= 0:
            continue
        if total + more > most_bytes:
            why = why or (
                f"copies of the state need {(total + more) / GB:.3g} GB, and [checkpoint] snapshot_gb = "
                f"{most_bytes / GB:g}"
            )
        elif limit is None or limit.room - pending - more < limit.limit // GRANT_LEAVES:
            free = "it is not known what is free" if limit is None else f"{(limit.room - pending) / GB:.3g} GB are free"
            why = (
                why
                or f"copies of the state need {more / GB:.3g} GB of memory, and {free}, a tenth of all is to stay so"
            )
        else:
            grants[one.global_rank] = one.wanted
            total, pending = total + more, pending + more
    return grants, why


class Held:
    """One rank's memory files, as opened here. Reads alone are for any thread."""

    def __init__(self, pid: int, number: int, name: str) -> None:
        """number: of the index's descriptor in that process. Raises OSError, ValueError where it is none of name."""
        self._fds: list[int] = []
        self.key = (pid, number)
        try:
            index = self._open(pid, number, f"{name}-index")
            slots = parse_header(os.pread(index, PAGE_BYTES, 0))
            if slots is None:
                raise ValueError("it has no index")
            for slot, fd in enumerate(slots):
                self._open(pid, fd, f"{name}-{slot}")
        except BaseException:
            self.close()
            raise

    def _open(self, pid: int, number: int, name: str) -> int:
        # Without waiting: a rank may show anything there.
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        self._fds.append(fd)
        is_it = os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{name} ")
        if not is_it or not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no memory file of a snapshot's")
        return fd

    def copies(self, global_rank: int) -> list[Copy]:
        """What its index tells of. Raises OSError."""
        found, fds = [], self._fds
        if not fds:
            raise OSError(errno.EBADF, "it was let go")
        for slot in range(SLOTS):
            record = parse_record(os.pread(fds[0], PAGE_BYTES, record_offset(slot)))
            if record is not None:
                found.append(Copy(global_rank, slot, record))
        return found

    def read(self, slot: int, length: int, offset: int) -> bytes:
        """Of a copy; fewer bytes at its end. Raises OSError."""
        fds = self._fds
        if not fds:
            raise OSError(errno.EBADF, "it was let go")
        return os.pread(fds[1 + slot], length, offset)

    def empty(self) -> None:
        """Take the memory back."""
        with suppress(OSError):
            for slot in range(SLOTS):
                os.pwrite(self._fds[0], bytes(16), record_offset(slot))
                os.ftruncate(self._fds[1 + slot], 0)

    def close(self) -> None:
        """The kernel frees it once the rank is gone as well."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


class SnapshotNode(LoopContext, Protocol):
    """What is used of the node's supervisor."""

    @property
    def ingest(self) -> RankMessageIngest:
        """Knows which attempt it is."""

    @property
    def sampler(self) -> Sampler:
        """Has the ranks' boards."""


class SnapshotMemory:
    """Of this node's ranks."""

    def __init__(self, node: SnapshotNode, most_bytes: int) -> None:
        self._node, self._most_bytes = node, most_bytes
        self._limits: MemoryLimits | None = None
        self._held: dict[tuple[int, int], Held] = {}
        """By attempt and global rank."""
        self._told: set[tuple[int, str]] = set()

    def sample(self) -> None:
        """Once a second."""
        attempt, boards = self._node.ingest.attempt, self._node.sampler.boards
        asked: list[Asked] = []
        pid = 0
        for number, board in boards.items():
            words = board.read()
            if words is None or not words[Field.SNAPSHOT_INDEX]:
                continue
            pid = words[Field.PID]
            if self._adopt(attempt, number, pid, words[Field.SNAPSHOT_INDEX] - 1):
                held = words[Field.SNAPSHOT_HELD]
                asked.append(Asked(number, words[Field.SNAPSHOT_WANTED], words[Field.SNAPSHOT_GRANTED], held))
        if asked:
            self._grant(attempt, asked, boards, pid)

    def _adopt(self, attempt: int, number: int, pid: int, fd: int) -> bool:
        known = self._held.get((attempt, number))
        if known is not None and known.key == (pid, fd):
            return True
        try:
            held = Held(pid, fd, f"{NAME}-{attempt}-{number}")
        except (OSError, ValueError) as error:
            if known is None and os.path.exists(f"/proc/{pid}"):
                text = f"the memory in which rank {number} keeps copies of its state can't be opened ({error})"
                self._warn_once(attempt, "opening", f"{text}: none are kept")
            return known is not None  # it has ended, and what is held is held
        if known is not None:
            known.close()
        self._held[(attempt, number)] = held
        return True

    def _grant(self, attempt: int, asked: list[Asked], boards: Mapping[int, BoardReader], pid: int) -> None:
        if all(one.granted < 0 for one in asked):
            return
        self._limits = self._limits or MemoryLimits()
        limit = self._limits.nearest(pid, {})
        holds = any(one.granted > 0 for one in asked)
        if holds and limit is not None and limit.room < limit.limit // KEEP_LEAVES:
            for one in asked:
                boards[one.global_rank].write(Field.SNAPSHOT_GRANTED, -1)
                self._held[(attempt, one.global_rank)].empty()
            self._warn_once(attempt, "back", "memory is short: no copies of the ranks' state are kept any more")
            return
        grants, why = decide_grants(asked, self._most_bytes, limit)
        for number, size_bytes in grants.items():
            boards[number].write(Field.SNAPSHOT_GRANTED, size_bytes)
        if why:
            self._warn_once(attempt, "refused", f"{why}: none are kept (hooks.snapshot)")

    def _warn_once(self, attempt: int, topic: str, text: str) -> None:
        if (attempt, topic) not in self._told:
            self._told.add((attempt, topic))
            self._node.terminal.print_line(text, "warn")

    def held(self, attempt: int) -> dict[int, Held]:
        """By global rank."""
        return {number: held for (one, number), held in list(self._held.items()) if one == attempt}

    def copies(self, attempt: int) -> list[Copy]:
        """What they hold, as far as it can be read."""
        found: list[Copy] = []
        for number, held in self.held(attempt).items():
            with suppress(OSError):
                found += held.copies(number)
        return found

    def take_before(self, attempt: int) -> list[Held]:
        """What earlier attempts have left, for the caller to close."""
        return [self._held.pop(key) for key in list(self._held) if key[0] < attempt]

    def close(self) -> None:
        """Hold nothing any more."""
        for held in self.take_before(1 << 60):
            held.close()
