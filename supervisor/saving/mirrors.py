"""Copies of another node's ranks' states, kept in this node's memory, and those of this one on their way to the next.

Sharded states alone: of what replicas hold, another node has a copy already. The head says who is next in the ring
(fleet/coordinator/mirror_ring.py); the bytes go from supervisor to supervisor (fleet/transport/mirror_stream.py).
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from guardrun.hooks.wire.snapshot_index import SLOTS, Record
from guardrun.supervisor.fleet.protocol.messages import MirrorOffer, MirrorOpen, MirrorReady, MirrorTo
from guardrun.supervisor.fleet.transport.curve import is_key, make_key_pair
from guardrun.supervisor.fleet.transport.mirror_stream import CHUNK_BYTES, END_S, MirrorReceiver, MirrorSender
from guardrun.supervisor.rundir.run_directory import FleetFile
from guardrun.supervisor.saving.memory_room import NO_MEMORY, MemoryRoom
from guardrun.supervisor.saving.snapshot_memory import GB, Held, SnapshotMemory, SnapshotNode
from guardrun.supervisor.saving.snapshot_sets import Copy

OFFER_S = 10.0
"""How often the head is asked for the next in the ring, while there is no connection."""
MOST_RANKS = 4096
MB = 1_000_000


@dataclass
class _Slot:
    fd: int
    record: Record | None = None


@dataclass
class Mirrored:
    """One rank's copies."""

    slots: list[_Slot] = field(default_factory=list)

    def read(self, slot: int, length: int, offset: int) -> bytes:
        """Of a copy; fewer bytes at its end. Raises OSError."""
        return os.pread(self.slots[slot].fd, length, offset)

    @property
    def size_bytes(self) -> int:
        """Of its memory files."""
        return sum(os.fstat(slot.fd).st_size for slot in self.slots)

    def close(self) -> None:
        """The kernel frees them."""
        for slot in self.slots:
            os.close(slot.fd)
        self.slots = [_Slot(-1) for _ in self.slots]  # whoever still reads gets an error


@dataclass
class _Incoming:
    """What is being received."""

    slot: _Slot
    record: Record
    size_bytes: int = 0
    crc: int = 0


class MirrorMemory:
    """What other nodes' ranks hold. The receiver's thread writes; the loop's lists and lets go."""

    def __init__(self, most_bytes: int, warn: Callable[[str], object] = lambda text: None) -> None:
        self._room, self._warn = MemoryRoom(most_bytes), warn
        self._held: dict[tuple[int, int], Mirrored] = {}
        """By attempt and global rank."""
        self._oldest = 0
        """What comes of earlier attempts is not taken."""
        self._incoming: _Incoming | None = None
        self._is_off = False
        self._lock = threading.Lock()

    def begin(self, attempt: int, global_rank: int, record: Record) -> str:
        """As Store has it."""
        with self._lock:
            self._incoming = None
            if attempt < self._oldest:
                return "that attempt is over"
            if self._is_off:
                return f"{NO_MEMORY} there"
            if not 0 <= global_rank < MOST_RANKS or not record.is_sharded:
                return "it is no part of a state"
            mirrored = self._held.get((attempt, global_rank)) or Mirrored()
            slots = mirrored.slots
            older = min(slots, key=lambda slot: slot.record.generation if slot.record else -1, default=None)
            more = record.size_bytes - (os.fstat(older.fd).st_size if older and len(slots) == SLOTS else 0)
            if why := self._room.why_not(sum(one.size_bytes for one in self._held.values()), more):
                return f"{why} there"
            if len(slots) < SLOTS:
                older = _Slot(os.memfd_create(f"guardrun-mirror-{attempt}-{global_rank}", os.MFD_CLOEXEC))
                slots.append(older)
            assert older is not None
            older.record = None
            self._held[(attempt, global_rank)] = mirrored
            self._incoming = _Incoming(older, record)
            return ""

    def put(self, data: bytes) -> str:
        """Likewise."""
        with self._lock:
            now = self._incoming
            if now is None:
                return "it has not begun"
            if now.size_bytes + len(data) > now.record.size_bytes:
                self._incoming = None
                return "it is longer than it says"
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(now.slot.fd, data[done:], now.size_bytes + done)
            except OSError as error:
                self._incoming = None
                return str(error)
            now.size_bytes += len(data)
            now.crc = zlib.crc32(data, now.crc)
            return ""

    def end(self) -> str:
        """Likewise."""
        with self._lock:
            now, self._incoming = self._incoming, None
            if now is None:
                return "it has not begun"
            if now.size_bytes != now.record.size_bytes or now.crc != now.record.crc:
                return "it is not what its record says"
            os.ftruncate(now.slot.fd, now.size_bytes)
            now.slot.record = now.record
            return ""

    def sample(self) -> None:
        """Once a second: the job's own memory comes first."""
        if self._held and not self._is_off and self._room.is_short():
            self.let_go(1 << 60)
            self._is_off, self._oldest = True, 0
            self._warn("memory is short: no copies of another node's ranks are kept any more")

    def held(self, attempt: int) -> dict[int, Mirrored]:
        """By global rank."""
        with self._lock:
            return {number: one for (its, number), one in self._held.items() if its == attempt}

    def copies(self, attempt: int) -> list[Copy]:
        """What is whole."""
        return [
            Copy(number, slot, one.record)
            for number, mirrored in self.held(attempt).items()
            for slot, one in enumerate(mirrored.slots)
            if one.record is not None
        ]

    def let_go(self, attempt: int) -> None:
        """What attempts before this one have left is not needed any more."""
        with self._lock:
            self._oldest, self._is_off, self._incoming = attempt, False, None
            for key in [key for key in self._held if key[0] < attempt]:
                self._held.pop(key).close()


class _Sent:
    """A copy on its way (mirror_stream.Outgoing)."""

    def __init__(self, attempt: int, copy: Copy, held: Held, record: Record) -> None:
        self.attempt, self.global_rank, self.record = attempt, copy.global_rank, record
        self._copy, self._held = copy, held

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, as far as it is not written over; what is sent instead has another checksum."""
        size, offset = self.record.size_bytes, 0
        while offset < size:
            chunk = self._held.read(self._copy.slot, min(CHUNK_BYTES, size - offset), offset)
            if not chunk or self.is_gone:
                return
            yield chunk
            offset += len(chunk)

    @property
    def is_gone(self) -> bool:
        """The rank has begun to write over it. Raises OSError."""
        its = [one.record.generation for one in self._held.copies(self.global_rank) if one.slot == self._copy.slot]
        return its != [self.record.generation]


class NodeMirror:
    """One node's part: what it sends, and what it keeps. On the loop's thread."""

    def __init__(
        self,
        node: SnapshotNode,
        memory: SnapshotMemory,
        fleet: FleetFile,
        say: Callable[[MirrorOffer | MirrorReady], object],
    ) -> None:
        """say: tells the head."""
        self._node, self._memory, self._fleet, self._say = node, memory, fleet, say
        table = node.run_file.config.get("checkpoint", {})
        most_bytes = int(table.get("mirror_gb", 0.0) * GB)
        self._bytes_per_s = float(table.get("mirror_mb_s", 0.0)) * MB
        self.is_wanted = table.get("mirror") is True and most_bytes > 0 and self._bytes_per_s > 0
        self.kept = MirrorMemory(most_bytes, lambda text: node.terminal.print_line(text, "warn"))
        self._keys = make_key_pair()
        self._receiver: MirrorReceiver | None = None
        self._sender: MirrorSender[_Sent] | None = None
        self._attempt = -1
        """Whose copies are sent."""
        self._offer_s = 0.0
        self._told: set[str] = set()

    def sample(self) -> None:
        """Once a second while ranks train."""
        self.kept.sample()
        attempt, now_s = self._node.ingest.attempt, time.monotonic()
        is_sending = self._sender is not None and self._attempt == attempt and not self._sender.is_over
        if not self.is_wanted or is_sending or now_s < self._offer_s:
            return
        if any(copy.record.is_sharded for copy in self._memory.copies(attempt)):
            self._offer_s = now_s + OFFER_S
            self._say(MirrorOffer(attempt=attempt, key=self._keys.public))

    def obey(self, order: MirrorOpen | MirrorTo) -> None:
        """What the head says."""
        if not self.is_wanted or not is_key(order.key):
            return
        if isinstance(order, MirrorTo):
            self._send_to(order)
            return
        try:
            self._receiver = self._receiver or MirrorReceiver(self._fleet.check_listen, self.kept)
        except OSError as error:
            self._warn_once(f"copies of {order.source}'s ranks can't be taken: {error}")
            return
        self._receiver.admit(order.key)
        self._say(
            MirrorReady(
                attempt=order.attempt,
                source=order.source,
                address=self._fleet.address,
                port=self._receiver.port,
                key=self._receiver.keys.public,
            )
        )

    def _send_to(self, order: MirrorTo) -> None:
        if order.attempt != self._node.ingest.attempt:
            return
        self._stop_sending()
        self._attempt = order.attempt
        sent: dict[int, int] = {}
        """By global rank: the generation that was sent last, or given up; the sender's thread's."""
        self._sender = MirrorSender(
            (order.address, order.port),
            self._keys,
            order.key,
            due=lambda: self._due(order.attempt, sent),
            done=lambda copy, why: self._done(copy, why, sent),
            bytes_per_s=self._bytes_per_s,
        )

    def let_go(self, attempt: int) -> None:
        """The ranks of this attempt are about to be started."""
        self._stop_sending()
        self._offer_s = 0.0
        self.kept.let_go(attempt)

    def close(self) -> None:
        """Hold nothing any more."""
        self._stop_sending(wait_s=END_S)
        if self._receiver is not None:
            self._receiver.close()
        self.kept.let_go(1 << 60)

    def _stop_sending(self, wait_s: float = 0.0) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close(wait_s)

    # On the sender's thread ------------------------------------------------------------------------------------------

    def _due(self, attempt: int, sent: dict[int, int]) -> _Sent | None:
        """The newest copy of the rank whose last one was sent longest ago."""
        newest: dict[int, tuple[Copy, Held]] = {}
        for number, held in self._memory.held(attempt).items():
            with suppress(OSError):
                for copy in held.copies(number):
                    known = newest.get(number)
                    if copy.record.is_sharded and (
                        known is None or copy.record.generation > known[0].record.generation
                    ):
                        newest[number] = (copy, held)
        due = [pair for number, pair in newest.items() if pair[0].record.generation > sent.get(number, 0)]
        if not due:
            return None
        copy, held = min(due, key=lambda pair: pair[0].record.at)
        if copy.record.generation > sent.get(copy.global_rank, copy.record.generation) + 1:
            self._warn_soon("they come faster than they can be sent")
        at_ns = int(self._node.clock.at_ns(copy.record.written_ns) * 1e9)
        return _Sent(attempt, copy, held, copy.record._replace(written_ns=at_ns))

    def _done(self, copy: _Sent, why: str, sent: dict[int, int]) -> None:
        sent[copy.global_rank] = copy.record.generation
        if not why:
            return
        with suppress(OSError):  # the attempt is over
            self._warn_soon("they are written over before they are there" if copy.is_gone else why)

    def _warn_soon(self, why: str) -> None:
        late = ": [checkpoint] snapshot_steps is too small for mirror_mb_s" if why.startswith("they ") else ""
        text = f"not all copies of the state reach the next node: {why}{late}"
        self._node.post(lambda: self._warn_once(text))

    def _warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._node.terminal.print_line(text, "warn")
