"""Envelopes between the deputies and the coordinator: one msgpack-encoded struct a frame, bodies opaque.

A connection begins with the deputy's Join. Nothing else of it is read before the Welcome; a Refusal ends it. Packets
are numbered in either direction and kept until acknowledged (channel.py). Every frame of a deputy says when it was
sent on the deputy's clock, and the answer says that time again: by it contact is leased (lease.py) and the clocks are
compared (clock_offset.py). `…_ns` are CLOCK_MONOTONIC nanoseconds of the deputy's host, `now_s` and `heard_s` the run's
seconds, as the coordinator keeps them.
"""

from __future__ import annotations

from typing import Annotated, Any

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


# Deputy → coordinator -------------------------------------------------------------------------------------------


class Join(_Frame, frozen=True, tag=1):
    """First on every connection."""

    protocol: int
    node: _Name
    slot: int
    """The node's place in the job, as the scheduler or the user numbers nodes; -1: none given."""
    incarnation: _Id
    """Random: one life of the deputy's process."""
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
    """A packet of the deputy."""

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


# Coordinator → deputy -------------------------------------------------------------------------------------------


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


FromDeputy = Join | Report | Pulse
ToDeputy = Welcome | Refusal | Order | Ack

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
