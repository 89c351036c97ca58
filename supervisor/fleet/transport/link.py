"""A follower's end: one DEALER to the coordinator, made anew whenever contact is lost.

A connection is a socket of its own: Join is the first that it sends, and packets follow the Welcome, so that none goes
to a coordinator that does not know us. Where the connection closes, nothing is answered for SILENT_S, or there is no
Welcome for a while, the socket is thrown away and the next one made, to the next address: at once, then at growing,
scattered intervals, so that ten thousand nodes do not return in one instant. A cut link shows neither: TCP would
wait for minutes before it tried again.

`send` only queues: what is unacknowledged is bounded (envelopes.py). Nothing here waits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.fleet.protocol.leader_loss_policy import Obstacle
from guardrun.supervisor.fleet.protocol.lease import ASLEEP_S, NodeLease, boot_s
from guardrun.supervisor.fleet.transport.connection import (
    Body,
    Connection,
    Head,
    Lost,
    Missed,
    Offset,
    Refused,
    Welcomed,
    What,
)
from guardrun.supervisor.fleet.transport.curve import KeyPair
from guardrun.supervisor.fleet.transport.envelopes import (
    DECODE_ERRORS,
    MAX_BODY_BYTES,
    PROTOCOL,
    Ack,
    Channel,
    Join,
    Order,
    Pulse,
    Refusal,
    Report,
    ToFollower,
    Welcome,
)

__all__ = ["Body", "Counters", "Head", "Link", "Lost", "Missed", "Refused", "Welcomed", "What"]

PULSE_S = 1.0
SILENT_S = 4.0
"""Without an answer to four pulses in a row the connection is taken for dead."""
WELCOME_S = 3.0
"""How long the first connection may take; doubled with each that fails."""
MAX_WELCOME_S = 15.0
FIRST_RETRY_S = 0.05
MAX_RETRY_S = 2.0
REFUSED_RETRY_S = 5.0
FRAMES_A_TURN = 1000
WAITING_BYTES = 4 * 1024 * 1024
"""Kept for a coordinator that is away."""
SUSPENDED_S = 0.1
"""CLOCK_BOOTTIME ran ahead of CLOCK_MONOTONIC by this much: the machine was suspended."""


@dataclass
class Counters:
    """Since this follower began: sockets made, frames that could not be decoded, refusals of the head."""

    connections: int = 0
    malformed: int = 0
    refused: int = 0


class Link:
    """Times are CLOCK_MONOTONIC seconds of this host."""

    def __init__(
        self,
        head: Head,
        keys: KeyPair,
        node: str,
        *,
        slot: int = -1,
        info: dict[str, Any] | None = None,
        limit_bytes: int = WAITING_BYTES,
    ) -> None:
        """keys: the client's. slot: the node's place in the job, -1: none. info: told with every Join."""
        self.head = head
        self.info = info or {}
        self.incarnation = random.SystemRandom().getrandbits(62) + 1
        self.counters = Counters()
        self._keys = keys
        self._node = node
        self._slot = slot
        self._channel = Channel(limit_bytes)
        self._offset = Offset()
        self._lease = NodeLease(0.0)
        self._suspended_s = _suspended_s()
        self._not_before_ns = 0
        self._hub = 0
        self._hub_lost = 0
        self._decoder: msgspec.msgpack.Decoder[ToFollower] = msgspec.msgpack.Decoder(known_type(ToFollower))
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context()
        self._poller: zmq.Poller | None = None
        self._connection: Connection | None = None
        self._failures = 0
        self.obstacle = Obstacle.NONE
        """Of the last connection that got no Welcome."""
        self.is_joined = False
        self._read_s = boot_s()
        self._due_s = time.monotonic()
        """The next pulse where joined, the end of patience where not, the next try where there is no socket."""
        self._heard_s = 0.0
        self._connect(time.monotonic())

    # The loop ------------------------------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wait for all that `read` reads, also when sockets are made anew."""
        self._poller = poller
        if self._connection is not None:
            self._connection.enrol(poller)

    def due_s(self) -> float:
        """When `read` wants to be called though nothing has come."""
        return min(self._due_s, self._heard_s + SILENT_S) if self.is_joined else self._due_s

    def read(self, ready: Mapping[Any, int]) -> list[What]:
        """What has come, in order, and whatever is due. To be called after every poll."""
        happened: list[What] = []
        now_s = time.monotonic()
        self._wake(now_s, happened)
        if self._connection is not None and self._connection.socket in ready:
            self._read_frames(happened)
        if self._connection is not None and self._connection.monitor.socket in ready:
            self._read_monitor(self._connection, happened)
        if now_s >= self.due_s():
            self._turn(now_s, happened)
        return happened

    def _wake(self, now_s: float, happened: list[What]) -> None:
        """Where this process did not run: the coordinator was not silent, or may have gone on without this node."""
        before_s, self._read_s = self._read_s, boot_s()
        if not self.is_joined or self._read_s - before_s <= ASLEEP_S:
            return
        if self._lease.is_held(self._read_s):
            self._heard_s = now_s
        else:
            # Joining again tells whether its ranks are still meant.
            self._lose(now_s, Lost("this node did not run"), happened)

    def send(self, body: bytes, replaces: str = "") -> bool:
        """Send a packet, now or when there is contact. replaces: takes the place of an older one of that key.

        False where it is over MAX_BODY_BYTES: then it is not kept.
        """
        if len(body) > MAX_BODY_BYTES:
            return False
        self._channel.send(body, replaces)
        if self.is_joined:
            self._flush()
        return True

    def redirect(self, head: Head, keys: KeyPair) -> None:
        """The join file says otherwise now (a new session's head): go there."""
        if (head, keys) == (self.head, self._keys):
            return
        self.head, self._keys = head, keys
        self._failures, self.obstacle = 0, Obstacle.NONE
        self._drop(time.monotonic(), 0.0)

    def close(self, linger_s: float = 0.5) -> None:
        """Let go; what has been sent is given linger_s to leave."""
        self._discard(linger_ms=round(linger_s * 1000))
        self._context.term()

    # What is known ---------------------------------------------------------------------------------------------

    @property
    def lease(self) -> NodeLease:
        """Its times are CLOCK_BOOTTIME's, as lease.boot_s gives them."""
        return self._lease

    def contact_lost_s(self) -> float:
        """How long ago the lease on contact ended; 0 while it is held, and before there was one."""
        return self._lease.contact_lost_s(boot_s())

    @property
    def is_unanswered(self) -> bool:
        """The head's host takes connections, and nothing comes: no process that knows us runs there just now."""
        if self.is_joined or self._connection is None:
            return not self.is_joined and self.obstacle is Obstacle.UNANSWERED
        return self._connection.is_reached or self.obstacle is Obstacle.UNANSWERED

    @property
    def offset(self) -> Offset:
        """The run's seconds less this host's CLOCK_MONOTONIC."""
        return self._offset

    @property
    def failures(self) -> int:
        """Connections in a row that got no Welcome: time to read the join file again."""
        return self._failures

    @property
    def newest(self) -> int:
        """The number of the newest packet."""
        return self._channel.newest

    def is_confirmed(self, packet: int) -> bool:
        """Whether the coordinator has dealt with everything up to this packet."""
        return self._channel.confirmed >= packet

    @property
    def has_waiting(self) -> bool:
        """Whether the coordinator has not acknowledged everything."""
        return self._channel.has_waiting

    @property
    def lost(self) -> int:
        """Packets dropped here, because too much waited."""
        return self._channel.lost

    # Frames ----------------------------------------------------------------------------------------------------

    def _read_frames(self, happened: list[What]) -> None:
        for _ in range(FRAMES_A_TURN):
            if self._connection is None:
                return
            try:
                parts = self._connection.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                frame = self._decoder.decode(parts[0] if len(parts) == 1 else b"")
            except DECODE_ERRORS:
                self.counters.malformed += 1
                continue
            self._on_frame(frame, time.monotonic(), happened)

    def _on_frame(self, frame: ToFollower, now_s: float, happened: list[What]) -> None:
        if isinstance(frame, Refusal):
            self.counters.refused += 1
            happened.append(Refused(frame.reason))
            self._drop(now_s, REFUSED_RETRY_S)
        elif isinstance(frame, Welcome):
            self._welcomed(frame, now_s, happened)
        elif not self.is_joined:
            self.counters.malformed += 1
        elif isinstance(frame, Ack):
            self._channel.acknowledged(frame.received)
            self._answered(frame, now_s)
        else:
            self._ordered(frame, happened)

    def _welcomed(self, welcome: Welcome, now_s: float, happened: list[What]) -> None:
        is_new = welcome.hub != self._hub
        if is_new:
            self._hub = welcome.hub
            self._hub_lost = 0
            self._offset = Offset()
            self._channel.reset()
        self._channel.rewind()
        self._channel.acknowledged(welcome.received)
        self._lease.term_s = welcome.term_s
        self.is_joined = True
        self._failures, self.obstacle = 0, Obstacle.NONE
        self._due_s = now_s + PULSE_S
        self._answered(welcome, now_s)
        happened.append(Welcomed(is_new, welcome.term_s))
        self._flush()

    def _ordered(self, order: Order, happened: list[What]) -> None:
        if order.lost > self._hub_lost:
            happened.append(Missed(order.lost - self._hub_lost))
            self._hub_lost = order.lost
        if self._channel.receive(order.seq):
            happened.append(Body(order.body, order.seq))

    def _answered(self, answer: Ack | Welcome, now_s: float) -> None:
        self._heard_s = now_s
        self._offset.answered(answer.echo_ns / 1e9, now_s, answer.heard_s, answer.now_s)
        suspended_s = _suspended_s()
        if abs(suspended_s - self._suspended_s) > SUSPENDED_S:
            # What was sent before the machine slept: how long ago is not known on this clock.
            self._suspended_s = suspended_s
            self._not_before_ns = time.monotonic_ns()
        if answer.echo_ns >= self._not_before_ns:
            self._lease.answered(answer.echo_ns / 1e9 + self._suspended_s)

    def _flush(self) -> None:
        """Send what has not been sent on this connection."""
        for message in self._channel.hand_out():
            report = Report(message.seq, message.body, time.monotonic_ns(), self._channel.received, self._channel.lost)
            if not self._put(report):
                self._channel.put_back(message.seq)
                return
            self._due_s = time.monotonic() + PULSE_S

    def _put(self, frame: Join | Report | Pulse) -> bool:
        if self._connection is None:
            return False
        try:
            data = self._encoder.encode(frame)
        except UnicodeEncodeError:
            data = encode_msgpack(frame)
        return self._connection.send(data)

    # Connections -----------------------------------------------------------------------------------------------

    def _turn(self, now_s: float, happened: list[What]) -> None:
        if self._connection is None:
            self._connect(now_s)
        elif not self.is_joined:
            self.obstacle = Obstacle.UNANSWERED if self._connection.is_reached else Obstacle.NONE
            self._drop(now_s)
        elif now_s - self._heard_s >= SILENT_S:
            self._lose(now_s, Lost("no answer"), happened)
        else:
            self._flush()
            if now_s >= self._due_s:
                self._put(Pulse(time.monotonic_ns(), self._channel.received, self._channel.lost))
                self._due_s = now_s + PULSE_S

    def _lose(self, now_s: float, lost: Lost, happened: list[What]) -> None:
        if self.is_joined:
            happened.append(lost)
        self._drop(now_s)

    def _drop(self, now_s: float, retry_s: float | None = None) -> None:
        """Throw the connection away; the next is made after retry_s, or what the failures so far ask for."""
        if not self.is_joined:
            self._failures += 1
        self._discard(linger_ms=0)
        if retry_s is None:
            longest_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2 ** min(self._failures, 10))
            retry_s = random.uniform(FIRST_RETRY_S, longest_s)
        self._due_s = now_s + retry_s

    def _discard(self, linger_ms: int) -> None:
        if self._connection is not None:
            self._connection.close(linger_ms)
        self._connection = None
        self.is_joined = False

    def _connect(self, now_s: float) -> None:
        host = self.head.addresses[self.counters.connections % len(self.head.addresses)]
        self.counters.connections += 1
        self._connection = Connection(self._context, self.head, host, self._keys, self._poller)
        self._due_s = now_s + min(MAX_WELCOME_S, WELCOME_S * 2 ** min(self._failures, 10))
        if not self._connection.open():
            self._drop(now_s)
            return
        self._put(
            Join(
                protocol=PROTOCOL,
                node=self._node,
                slot=self._slot,
                incarnation=self.incarnation,
                connection=self.counters.connections,
                hub=self._hub,
                received=self._channel.received,
                sent_ns=time.monotonic_ns(),
                info=self.info,
            )
        )

    def _read_monitor(self, connection: Connection, happened: list[What]) -> None:
        if not connection.read_end():
            return
        self._read_frames(happened)  # its last words
        if not self.is_joined:
            self.obstacle = Obstacle.TURNED_AWAY if connection.is_reached else Obstacle.NOBODY
        self._lose(time.monotonic(), Lost("the connection was closed", is_closed=True), happened)


def _suspended_s() -> float:
    """CLOCK_BOOTTIME less CLOCK_MONOTONIC: how long the machine has been suspended since it booted."""
    return boot_s() - time.monotonic()
