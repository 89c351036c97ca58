"""Envelopes between the followers and the coordinator: one msgpack-encoded struct a frame, bodies opaque.

Messages in them are numbered, and kept until acknowledged.

A connection begins with the follower's Join. Nothing else of it is read before the Welcome; a Refusal ends it. Packets
are numbered in either direction and kept until acknowledged (envelopes.py). Every frame of a follower says when it was
sent on the follower's clock, and the answer says that time again: by it contact is leased (lease.py) and the clocks are
compared (connection.py). `…_ns` are CLOCK_MONOTONIC nanoseconds of the follower's host, `now_s` and `heard_s` the run's
seconds, as the coordinator keeps them.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec

PROTOCOL = 1
"""Both ends must speak the same: one run, one guardrun."""

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""Of one frame in either direction; whoever sends a larger one is cut off."""
MAX_BODY_BYTES = MAX_FRAME_BYTES - 1024
MAX_NAME_CHARS = 255
"""HOST_NAME_MAX is 64; a node's name may be a domain name."""
MAX_REASON_CHARS = 4096

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_CHARS)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[int, msgspec.Meta(ge=1)]


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    pass


# Follower → coordinator -------------------------------------------------------------------------------------------


class Join(_Frame, frozen=True, tag=1):
    """First on every connection."""

    protocol: int
    node: _Name
    slot: int
    """The node's place in the job, as the scheduler or the user numbers nodes; -1: none given."""
    incarnation: _Id
    """Random: one life of the follower's process."""
    connection: _Count
    """Which connection of this incarnation: of two, the later one holds."""
    hub: int
    """The coordinator's incarnation that `received` is about; 0: never met one."""
    received: _Count
    """The newest packet of that coordinator that has arrived here."""
    sent_ns: _Count
    info: dict[str, Any] = {}
    """The caller's: version, addresses, …"""


class Report(_Frame, frozen=True, tag=2):
    """A packet of the follower."""

    seq: _Id
    body: bytes
    sent_ns: _Count
    received: _Count
    """The newest packet that has arrived here."""
    lost: _Count = 0
    """Packets that were dropped here unsent since this incarnation began."""


class Pulse(_Frame, frozen=True, tag=3):
    """Nothing new; sent where nothing else has been for a second."""

    sent_ns: _Count
    received: _Count
    lost: _Count = 0


# Coordinator → follower -------------------------------------------------------------------------------------------


class Welcome(_Frame, frozen=True, tag=4):
    """Answer to Join: packets may follow. `echo_ns`, `heard_s` and `now_s` as in Ack."""

    hub: _Id
    """Random: one life of the coordinator's process."""
    received: _Count
    """The newest packet of this incarnation that is known here; 0: none."""
    term_s: float
    """How long contact is leased for."""
    echo_ns: _Count
    heard_s: float
    now_s: float


class Refusal(_Frame, frozen=True, tag=5):
    """Only to a peer that holds an admitted key."""

    reason: str


class Order(_Frame, frozen=True, tag=6):
    """A packet of the coordinator."""

    seq: _Id
    body: bytes
    lost: _Count = 0


class Ack(_Frame, frozen=True, tag=7):
    """Everything up to `received` was heard and dealt with."""

    received: _Count
    echo_ns: _Count
    """sent_ns of the newest frame that was heard."""
    heard_s: float
    """When it was."""
    now_s: float


FromFollower = Join | Report | Pulse
ToFollower = Welcome | Refusal | Order | Ack

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


# Channel ------------------------------------------------------------------------------------------------------------
# Numbered messages that are kept until acknowledged: the same for both directions, without a socket.
#
# What lies below delivers in order as long as one connection lasts, and may lose the end of it. So the sender keeps
# what is not acknowledged, sends it again on the next connection, and the receiver drops what it has had. Numbers only
# rise; a gap is something that the sender has taken back (superseded) or had to drop (counted in `lost`).
#
# What waits is bounded in bytes, because the other end may be away for hours:
# - a message with a `replaces` key takes the place of the older one of the same key: only the newest state is wanted;
# - the rest are events. At the bound the oldest event is dropped, and `lost`, which travels with the next frame, says
#   how many; where there are none but states, the oldest of these.
# A dropped message may have arrived all the same, where only its acknowledgement was on the way: `lost` is the most
# that can be missing.


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
        """Queue a message for `hand_out`."""
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

    def hand_out(self) -> list[Message]:
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
        """`hand_out` begins with this message again: it could not be sent."""
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
