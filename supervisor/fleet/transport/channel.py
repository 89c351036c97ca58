"""Numbered messages that are kept until acknowledged: the same for both directions, without a socket.

What lies below delivers in order as long as one connection lasts, and may lose the end of it. So the sender keeps
what is not acknowledged, sends it again on the next connection, and the receiver drops what it has had. Numbers only
rise; a gap is something that the sender has taken back (superseded) or had to drop (counted in `lost`).

What waits is bounded in bytes, because the other end may be away for hours:
- a message with a `replaces` key takes the place of the older one of the same key: only the newest state is wanted;
- the rest are events. At the bound the oldest event is dropped, and `lost`, which travels with the next frame, says
  how many; where there are none but states, the oldest of these.
A dropped message may have arrived all the same, where only its acknowledgement was on the way: `lost` is the most
that can be missing.
"""

from __future__ import annotations

from typing import NamedTuple

OVERHEAD_BYTES = 256
"""What a waiting message costs beside its body: so that empty ones are bounded, too."""


class Message(NamedTuple):
    """What is to be sent."""

    seq: int
    body: bytes


class _Waiting(NamedTuple):
    body: bytes
    replaces: str


class Channel:
    """One end of the messages between two processes; a new life of the peer's process takes `reset`."""

    def __init__(self, limit_bytes: int, first_seq: int = 1) -> None:
        """limit_bytes: of what waits to be acknowledged, OVERHEAD_BYTES a message included."""
        self._limit_bytes = limit_bytes
        self._waiting: dict[int, _Waiting] = {}
        self._by_key: dict[str, int] = {}
        self._bytes = 0
        self._next_seq = first_seq
        self._sent_seq = first_seq - 1
        self.confirmed = first_seq - 1
        """The newest message that the peer has acknowledged, and all before it."""
        self.received = 0
        """The newest message of the peer's that has arrived."""
        self.lost = 0
        self.duplicates = 0

    # Sending -------------------------------------------------------------------------------------------------

    def send(self, body: bytes, replaces: str = "") -> None:
        """Queue a message; `take` hands it out."""
        if replaces and replaces in self._by_key:
            self._remove(self._by_key[replaces])
        seq = self._next_seq
        self._next_seq += 1
        self._waiting[seq] = _Waiting(body, replaces)
        self._bytes += len(body) + OVERHEAD_BYTES
        if replaces:
            self._by_key[replaces] = seq
        while self._bytes > self._limit_bytes and self._waiting:
            self._drop_one()

    def take(self) -> list[Message]:
        """What has not been handed out on this connection yet, in order."""
        if self._sent_seq >= self._next_seq - 1:
            return []
        first = self._sent_seq + 1
        if first in self._waiting and first == self._next_seq - 1:  # the common case: one message, just queued
            due = [Message(first, self._waiting[first].body)]
        else:
            due = [Message(seq, waiting.body) for seq, waiting in self._waiting.items() if seq >= first]
        self._sent_seq = self._next_seq - 1
        return due

    def put_back(self, seq: int) -> None:
        """`take` begins with this message again: it could not be sent."""
        self._sent_seq = min(self._sent_seq, seq - 1)

    def acknowledged(self, seq: int) -> None:
        """The peer has everything up to seq. What it cannot have had is not believed."""
        if seq >= self._next_seq:
            return
        self.confirmed = max(self.confirmed, seq)
        done = []
        for known in self._waiting:  # in order: the first that is newer ends it
            if known > seq:
                break
            done.append(known)
        for known in done:
            self._remove(known)

    def rewind(self) -> None:
        """A new connection: everything that is not acknowledged is to be sent again."""
        self._sent_seq = 0

    @property
    def newest(self) -> int:
        """The newest message, queued or sent."""
        return self._next_seq - 1

    @property
    def has_waiting(self) -> bool:
        """Whether anything is not acknowledged."""
        return bool(self._waiting)

    @property
    def waiting_bytes(self) -> int:
        """Of what the peer has not acknowledged, with OVERHEAD_BYTES for each message."""
        return self._bytes

    # Receiving -----------------------------------------------------------------------------------------------

    def receive(self, seq: int) -> bool:
        """Say whether a message that has arrived is new."""
        if seq <= self.received:
            self.duplicates += 1
            return False
        self.received = seq
        return True

    def reset(self) -> None:
        """The peer is a new process: it numbers anew, and knows nothing of what it was sent."""
        self.received = 0
        self.rewind()

    # -----------------------------------------------------------------------------------------------------------

    def _drop_one(self) -> None:
        """The oldest event; where there is none, the oldest state."""
        oldest_event = next((seq for seq, waiting in self._waiting.items() if not waiting.replaces), None)
        self._remove(next(iter(self._waiting)) if oldest_event is None else oldest_event)
        self.lost += 1

    def _remove(self, seq: int) -> None:
        waiting = self._waiting.pop(seq)
        self._bytes -= len(waiting.body) + OVERHEAD_BYTES
        if waiting.replaces and self._by_key.get(waiting.replaces) == seq:
            del self._by_key[waiting.replaces]
