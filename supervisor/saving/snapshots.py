"""Copies of ranks' states in memory, for the supervisor: kept while ranks train, written out before a restart."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.snapshot_index import pack_record, parse_record
from guardrun.supervisor.base.log import log
from guardrun.supervisor.checkpoints.chooser import Choice
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.engine.model.actions import Spoiled
from guardrun.supervisor.engine.model.events import SnapshotWritten
from guardrun.supervisor.fleet.protocol.messages import SnapshotAnswer, SnapshotOrder
from guardrun.supervisor.node.run_context import CheckpointContext
from guardrun.supervisor.saving.snapshot_files import (
    MAX_WHY_CHARS,
    NotWrittenError,
    PartFiles,
    Readable,
    Written,
    write_here,
    write_newest,
)
from guardrun.supervisor.saving.snapshot_memory import GB, SnapshotMemory, SnapshotNode
from guardrun.supervisor.saving.snapshot_sets import Copy, First, find_whole

IDLE_INTERVALS = 2
"""A rank that has not called by then is taken for one that never does, should its node be lost."""


class SeveralNodes(Protocol):
    """Has what all nodes hold written out (fleet/coordinator/fleet_snapshots.py)."""

    @property
    def has_any(self) -> bool:
        """Whether the last attempt has kept something, on any node."""

    def write_newest(self, past_step: int, spoiled: Sequence[Spoiled]) -> tuple[int, Written]:
        """As Snapshots.write_newer; with the attempt's number."""


class Mirror(Protocol):
    """What is kept for another node (saving/mirrors.py)."""

    def copies(self, attempt: int) -> list[Copy]:
        """What is whole; times are the run's nanoseconds."""

    def held(self, attempt: int) -> Mapping[int, Readable]:
        """By global rank."""


class Snapshots:
    """Of one run, where it is decided."""

    def __init__(self, node: SnapshotNode, context: CheckpointContext) -> None:
        self._node, self._context = node, context
        self._memory = make_memory(node)
        self.others: SeveralNodes | None = None
        """In a job of several nodes: this one's part is among theirs."""

    @property
    def memory(self) -> SnapshotMemory:
        """This node's."""
        return self._memory

    def sample(self) -> None:
        """Once a second, on the loop's thread."""
        self._memory.sample()

    @property
    def has_any(self) -> bool:
        """Whether the last attempt has kept something."""
        if self.others is not None:
            return self.others.has_any
        return bool(self._memory.held(self._node.ingest.attempt))

    def write_newer(
        self,
        choice: Choice,
        spoiled: Sequence[Spoiled],
        why_not: str = "",
        note: Callable[[int, Written], object] = lambda attempt, written: None,
    ) -> SnapshotWritten | None:
        """Write out what the last attempt has left, if it is newer than what would be resumed from.

        why_not: why it may not be. note: is told the attempt, and what came of it. Nothing of the attempt is alive. On
        the chooser's thread; may block as disks do. The chooser knows of it then.
        """
        if not self.has_any:
            return None
        if why_not:
            return SnapshotWritten(why=why_not)
        chooser, clock = self._context.chooser, self._node.clock
        past_step = chooser.steps_done(choice.checkpoint) if choice.checkpoint is not None else 0
        write = self._write if self.others is None else self.others.write_newest
        attempt, written = write(past_step, spoiled)
        for path, inode in zip(written.paths, written.inodes, strict=True):
            wall_s = clock.wall_s(clock.now())
            chooser.saw_saved(path, written.step, wall_s, inode, attempt, is_named=True)
        note(attempt, written)
        if not written.paths and not written.why:
            return None
        return SnapshotWritten(
            step=written.step,
            path=written.paths[0] if written.paths else "",
            files=len(written.paths),
            size_bytes=written.size_bytes,
            took_s=round(written.took_s, 3),
            why=written.why,
        )

    def _write(self, past_step: int, spoiled: Sequence[Spoiled]) -> tuple[int, Written]:
        attempt, clock = self._node.ingest.attempt, self._node.clock
        held = self._memory.held(attempt)
        copies = self._memory.copies(attempt)
        ranks = sorted(self._node.sampler.boards)
        written = write_newest(
            find_whole(copies, ranks, read_boards(self._node.sampler.boards)[1]),
            newest_step(copies),
            write_here(held),
            attempt=attempt,
            past_step=past_step,
            spoiled=spoiled,
            wall_s=lambda at_ns: clock.wall_s(clock.at_ns(at_ns)),
        )
        return attempt, written

    def let_go(self, attempt: int) -> None:
        """The ranks of this attempt are about to be started: what earlier ones have left is not needed any more."""
        for held in self._memory.take_before(attempt):
            with suppress(RuntimeError):  # closing: it ends with this process
                self._context.checkpoint_pool.submit(held.close)


def make_memory(node: SnapshotNode) -> SnapshotMemory:
    """A node's, as large as its configuration allows."""
    most_gb = node.run_file.config.get("checkpoint", {}).get("snapshot_gb", 0.0)
    return SnapshotMemory(node, int(most_gb * GB))


def read_boards(boards: Mapping[int, BoardReader]) -> tuple[dict[int, First], dict[int, int]]:
    """What ranks named first; those that have never called, and the steps that they have finished."""
    firsts: dict[int, First] = {}
    idle: dict[int, int] = {}
    for number, board in boards.items():
        words = board.read()
        if words is None:
            continue
        if words[Field.SNAPSHOT_NAMED]:
            firsts[number] = (words[Field.SNAPSHOT_FIRST], words[Field.SNAPSHOT_NAMED])
        elif not words[Field.SNAPSHOT_INDEX]:
            idle[number] = words[Field.STEP]
    return firsts, idle


def newest_step(copies: Sequence[Copy]) -> int:
    """Of any of them that holds something."""
    return max((copy.record.step for copy in copies if copy.record.holds), default=0)


def node_tag(node: str) -> str:
    """What tells a node's files from those that others write in the same folder."""
    return hashlib.sha256(node.encode(errors="replace")).hexdigest()[:8]


class NodeSnapshots:
    """One node's part where there are several, the head's own, too: orders in, answers out.

    On the loop's thread. What blocks as disks do is done by another, in the order in which it was asked for.
    """

    def __init__(
        self,
        node: SnapshotNode,
        memory: SnapshotMemory,
        answer: Callable[[SnapshotAnswer], object],
        mirror: Mirror | None = None,
    ) -> None:
        """mirror: what is kept for another node."""
        self._node, self._memory, self._answer, self._mirror = node, memory, answer, mirror
        table = node.run_file.config.get("checkpoint", {})
        self._every = int(table.get("snapshot_steps", 0))
        self._told: object = None
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._files = PartFiles(node_tag(node.run_file.node))
        self._prepared = 0
        """Of this question. Both are the other thread's."""
        self._newest = 0
        """The question whose files are wanted; 0: none."""

    def sample(self) -> None:
        """Once a second while ranks train: say what may be needed once this node is gone, each time there is more."""
        if self._every <= 0:
            return
        attempt = self._node.ingest.attempt
        firsts, idle = read_boards(self._node.sampler.boards)
        idle = {number: steps for number, steps in idle.items() if steps > IDLE_INTERVALS * self._every}
        told = (attempt, sorted(firsts), sorted(idle))
        if told != self._told and (firsts or idle):
            self._told = told
            self._answer(SnapshotAnswer(ask=0, attempt=attempt, firsts=firsts, idle=idle))

    def tell_again(self) -> None:
        """Whoever was told is gone; ranks may have ended by now."""
        self._told = None
        self.sample()

    def obey(self, order: SnapshotOrder) -> None:
        """SnapshotAnswer is the answer."""
        if order.what == "list":
            self._answer(self._list(order.ask, order.attempt))
        elif order.what == "drop":
            self._newest = 0
            self._soon(lambda: self._drop(order))
        else:
            self._newest = order.ask
            self._soon(lambda: self._obey(order))

    def let_go(self, attempt: int) -> None:
        """The ranks of this attempt are about to be started: what earlier ones have left is not needed any more."""
        self._newest = 0
        if self._thread is not None:
            self._soon(self._files.drop)
        for held in self._memory.take_before(attempt):
            self._soon(held.close)

    def close(self) -> None:
        """Leave nothing beside the files' names, once the disk lets go."""
        self._newest = 0
        if self._thread is not None:
            self._work.put(self._files.drop)
            self._work.put(None)

    def _soon(self, work: Callable[[], object]) -> None:
        self._work.put(work)
        if self._thread is None:
            # A daemon: a disk that does not answer must not keep the supervisor from ending.
            self._thread = threading.Thread(target=self._serve, name="guardrun-snapshots", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("snapshot_work_failed")

    def _list(self, ask: int, attempt: int) -> SnapshotAnswer:
        copies: dict[int, list[tuple[int, bytes]]] = {}
        for copy in self._memory.copies(attempt):
            at_ns = int(self._node.clock.at_ns(copy.record.written_ns) * 1e9)
            page = pack_record(copy.record._replace(written_ns=at_ns))
            copies.setdefault(copy.global_rank, []).append((copy.slot, page))
        for copy in self._mirror.copies(attempt) if self._mirror is not None else ():
            copies.setdefault(copy.global_rank, []).append((copy.slot, pack_record(copy.record)))
        is_newest = attempt == self._node.ingest.attempt
        firsts, idle = read_boards(self._node.sampler.boards if is_newest else {})
        return SnapshotAnswer(ask=ask, attempt=attempt, copies=copies, firsts=firsts, idle=idle)

    # On the other thread ---------------------------------------------------------------------------------------------

    def _obey(self, order: SnapshotOrder) -> None:
        if self._is_off(order):
            return
        free, why = 0, ""
        try:
            left_s = order.by_s - self._node.clock.now()
            if left_s <= 0:
                raise NotWrittenError("it came too late")
            if order.what == "prepare":
                self._files.drop()
                self._prepared = order.ask
                held: dict[int, Readable] = dict(self._mirror.held(order.attempt)) if self._mirror is not None else {}
                held |= self._memory.held(order.attempt)
                self._files.prepare(held, self._find(order), time.monotonic() + left_s, lambda: self._is_off(order))
                free = self._files.free()
            elif order.ask != self._prepared:
                raise NotWrittenError("nothing was prepared")
            else:
                names = self._files.name(order.number)
                free = order.number if names is not None else self._files.free(order.number + 1)
        except (OSError, ValueError, NotWrittenError) as error:
            self._files.drop()
            why = str(error)[:MAX_WHY_CHARS] or type(error).__name__
        self._reply(order, free, why)

    def _drop(self, order: SnapshotOrder) -> None:
        self._files.drop()
        self._reply(order)

    def _reply(self, order: SnapshotOrder, free: int = 0, why: str = "") -> None:
        answer = SnapshotAnswer(ask=order.ask, attempt=order.attempt, free=free, why=why)
        self._node.post(lambda: self._answer(answer))

    def _is_off(self, order: SnapshotOrder) -> bool:
        return order.ask != self._newest

    def _find(self, order: SnapshotOrder) -> list[Copy]:
        """What is asked for, as it is held here. Raises NotWrittenError."""
        mirrored = self._mirror.copies(order.attempt) if self._mirror is not None else []
        copies = [*mirrored, *self._memory.copies(order.attempt)]
        here = {(copy.global_rank, copy.slot): copy for copy in copies}
        found = []
        for number, slot, generation in order.parts:
            copy = here.get((number, slot))
            if copy is None or copy.record.generation != generation or not copy.record.holds:
                raise NotWrittenError(f"the copy of rank {number} is not there any more")
            found.append(copy)
        return found


def read_listing(answer: SnapshotAnswer, node: str, ranks: Mapping[int, object]) -> list[Copy]:
    """A node's copies, of these ranks, as far as they are records."""
    found = []
    for number, its in answer.copies.items():
        for slot, page in its if number in ranks else ():
            record = parse_record(page)
            if record is not None:
                found.append(Copy(number, slot, record, node))
    return found
