"""One connection of a follower to the coordinator: its socket, what becomes of it, and how far off the clocks are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import zmq

from guardrun.supervisor.fleet.transport.curve import Context, KeyPair, Monitor, make_dealer

_ENDS = frozenset(
    {
        zmq.EVENT_DISCONNECTED,
        zmq.EVENT_CLOSED,
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    }
)


class Head(NamedTuple):
    """Where the coordinator is; see join_file.py."""

    addresses: Sequence[str]
    port: int
    server_key: str


class Connection:
    """Made at once, and thrown away when it has ended."""

    def __init__(self, context: Context, head: Head, host: str, keys: KeyPair, poller: zmq.Poller | None) -> None:
        """host: one of the head's addresses."""
        self.socket = make_dealer(context, keys, head.server_key)
        self.monitor = Monitor(context, self.socket)
        self.is_reached = False
        """Something at the other end has taken it."""
        self._place = f"tcp://{f'[{host}]' if ':' in host else host}:{head.port}"
        self._poller: zmq.Poller | None = None
        if poller is not None:
            self.enrol(poller)

    def open(self) -> bool:
        """False where the address is none."""
        try:
            self.socket.connect(self._place)
        except zmq.ZMQError:
            return False
        return True

    def enrol(self, poller: zmq.Poller) -> None:
        """Have a poller wait for it."""
        self._poller = poller
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor.socket, zmq.POLLIN)

    def read_end(self) -> bool:
        """Take in what has become of it: whether it has ended."""
        events, _ = self.monitor.read()
        self.is_reached = self.is_reached or any(event == zmq.EVENT_CONNECTED for event, _ in events)
        return any(event in _ENDS for event, _ in events)

    def send(self, data: bytes) -> bool:
        """False where ZeroMQ takes no more just now, or the socket is closed; nothing is kept then."""
        try:
            self.socket.send(data, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_ms: int) -> None:
        """Close socket and monitor. linger_ms: how long ZeroMQ may go on sending what it has taken."""
        if self._poller is not None:
            self._poller.unregister(self.monitor.socket)
            self._poller.unregister(self.socket)
        self.monitor.close()
        self.socket.close(linger=linger_ms)


# Clock offset -------------------------------------------------------------------------------------------------------
# How far the coordinator's clock is from this host's, from answers to what was sent; without a clock of its own.
#
# Of one answer: the frame left at `sent` and the answer came at `got` (ours), it was heard at `heard` and answered at
# `now` (theirs). Were both ways equally long, theirs is ahead of ours by ((heard - sent) + (now - got)) / 2 (RFC 5905,
# section 8). They are not, and the error is at most half of what was spent on the way, whichever way was the longer. So
# the answer that spent least wins, until its own error plus what the clocks may have drifted apart since is no better.


DRIFT = 2e-4
"""Each of the two clocks may be 100 ppm off (RFC 5905: a tolerance of 15 ppm; crystals without NTP: up to 100)."""


class Offset:
    """The best estimate so far."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._error_s = float("inf")
        self._at_s = 0.0

    def answered(self, sent_s: float, got_s: float, heard_s: float, now_s: float) -> None:
        """Take an answer in: sent_s and got_s on this host's clock, heard_s and now_s on the coordinator's."""
        on_the_way_s = (got_s - sent_s) - (now_s - heard_s)
        if got_s < sent_s or now_s < heard_s or on_the_way_s < -DRIFT * (got_s - sent_s) - 1e-6:
            return  # no answer to anything: a clock that jumped, or nonsense
        error_s = max(0.0, on_the_way_s) / 2
        if error_s <= self.error_s(got_s):
            self._offset_s = ((heard_s - sent_s) + (now_s - got_s)) / 2
            self._error_s = error_s
            self._at_s = got_s

    @property
    def is_known(self) -> bool:
        """Whether an answer has been taken in: before, `offset_s` means nothing."""
        return self._error_s != float("inf")

    @property
    def offset_s(self) -> float:
        """Coordinator's seconds minus this host's; 0 before the first answer."""
        return self._offset_s

    def error_s(self, now_s: float) -> float:
        """The most that the offset can be wrong by at now_s of this host; infinite before the first answer."""
        return self._error_s + DRIFT * max(0.0, now_s - self._at_s)


# Link events --------------------------------------------------------------------------------------------------------
# What a link tells its caller of the coordinator.


class Body(NamedTuple):
    """What the coordinator has sent, in order, once."""

    body: bytes
    seq: int


class Welcomed(NamedTuple):
    """A connection stands."""

    is_new_hub: bool
    """The coordinator is a new process (or the first): it may have lost what it had not journalled."""
    term_s: float


class Refused(NamedTuple):
    """The coordinator does not want us; it is asked again after a while, until the link is closed."""

    reason: str


class Lost(NamedTuple):
    """The connection is gone; the next one is under way."""

    why: str
    is_closed: bool = False
    """By the other end; else nothing came any more."""


class Missed(NamedTuple):
    """The coordinator says that it had to drop this many more orders."""

    packets: int


What = Body | Welcomed | Refused | Lost | Missed
