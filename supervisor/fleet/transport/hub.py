"""The coordinator's end: one ROUTER for all followers, read and written from the supervisor's own loop.

A follower is known by the routing id of its newest connection. Every turn goes in this order, and must:
1. the monitor: who is gone. A descriptor is used again by the next connection, but that one is not let in before (3)
   has answered for it, so no later connection can be taken for one that this step has not yet read of;
2. frames;
3. the authenticator.

What `read` returns is acknowledged by `acknowledge`, when the caller has dealt with it (journalled it): a coordinator
that is killed in between gets it again. What its predecessor had journalled and not acknowledged would come twice: the
caller tells the new one what it knows (`known`).

Nothing here waits, and nothing that a peer sends raises: it is counted, and dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.fleet.transport.curve import CurveAuthenticator, KeyPair, Monitor, make_router
from guardrun.supervisor.fleet.transport.envelopes import (
    DECODE_ERRORS,
    MAX_BODY_BYTES,
    MAX_REASON_CHARS,
    PROTOCOL,
    Ack,
    FromFollower,
    Join,
    Order,
    Pulse,
    Refusal,
    Report,
    ToFollower,
    Welcome,
)
from guardrun.supervisor.fleet.transport.peers import (
    Back,
    Body,
    ConnectionLimiter,
    Counters,
    Decide,
    Dropped,
    Joined,
    Known,
    Missed,
    Peer,
    Peers,
    What,
    newer_if_gone,
    raise_descriptor_limit,
)
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, Listen, bind_to

__all__ = ["Back", "Body", "Counters", "Dropped", "Hub", "HubSettings", "Joined", "Known", "Missed", "What"]

_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: an enum's arithmetic would cost more than the call."""

FRAMES_A_TURN = 2000
HANDSHAKE_MS = 10_000
"""A stranger that says nothing is cut off after this."""
ORDERS_BYTES = 1024 * 1024
"""Kept for one follower that is away."""
MAX_NODES = 20_000
CROWD_SHARE = 4
"""Connections that have not joined may take one in so many of our descriptors."""
MAX_CROWD = 4096


@dataclass
class HubSettings:
    """What rarely is other than this."""

    listen: Listen = EVERYWHERE
    term_s: float = 20.0
    decide: Decide = newer_if_gone
    known: Mapping[str, Known] = field(default_factory=dict)
    orders_bytes: int = ORDERS_BYTES
    max_nodes: int = MAX_NODES
    handshake_ms: int = HANDSHAKE_MS
    max_crowd: int = MAX_CROWD


class Hub:
    """Listens from the moment that it is made. Raises zmq.ZMQError where the port is taken."""

    def __init__(
        self,
        now: Callable[[], float],
        keys: KeyPair,
        admitted: Iterable[str],
        port: int = 0,
        settings: HubSettings | None = None,
    ) -> None:
        """now: the run's seconds. admitted: public keys. port 0: any, see `port`."""
        self._now = now
        self._settings = settings or HubSettings()
        self.incarnation = random.SystemRandom().getrandbits(62) + 1
        self.counters = Counters()
        self._peers = Peers()
        self._unanswered: dict[str, Peer] = {}
        self._decoder: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(known_type(FromFollower))
        self._encoder = msgspec.msgpack.Encoder()
        self._crowd = ConnectionLimiter(min(self._settings.max_crowd, raise_descriptor_limit() // CROWD_SHARE))
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 64)
        self._authenticator = CurveAuthenticator(
            self._context, admitted
        )  # before the socket: without one, everybody is let in
        self._socket = make_router(self._context, keys, self._settings.handshake_ms)
        self._monitor = Monitor(self._context, self._socket)
        self._bound: dict[str, str] = {}
        """Endpoints by address."""
        try:
            self.port = bind_to(self._settings.listen, port, self._bind, self._unbind)
        except OSError as error:
            self.close()
            raise zmq.ZMQError(error.errno) from None

    def listen_also(self, addresses: Iterable[str]) -> list[str]:
        """Listen at these, too; returns those that are new, and can be listened at."""
        if "" in self._bound:
            return []
        found = []
        for address in addresses:
            if address not in self._bound:
                with suppress(OSError):
                    self._bind(address, self.port)
                    found.append(address)
        return found

    def _bind(self, address: str, port: int) -> int:
        """address empty: all. Raises OSError."""
        host = f"[{address}]" if ":" in address else address or "*"
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from None
        self._bound[address] = self._socket.get_string(zmq.LAST_ENDPOINT)
        return int(self._bound[address].rpartition(":")[2])

    def _unbind(self) -> None:
        for endpoint in self._bound.values():
            with suppress(zmq.ZMQError):
                self._socket.unbind(endpoint)
        self._bound.clear()

    # The loop ------------------------------------------------------------------------------------------------

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wait for all that `read` reads."""
        for socket in (self._socket, self._authenticator.socket, self._monitor.socket):
            poller.register(socket, zmq.POLLIN)

    def read(self, ready: Mapping[Any, int]) -> list[tuple[str, What]]:
        """What has come, in order; ready: what the poller said. The caller then deals with it, and acknowledges."""
        happened: list[tuple[str, What]] = []
        is_all = True
        if self._monitor.socket in ready or self._socket in ready:
            is_all = self._read_monitor(happened)
        if is_all and self._socket in ready:
            self._read_frames(happened)
        if self._authenticator.socket in ready:
            self._authenticator.answer()
            self.counters.keys_refused = self._authenticator.refused
        return happened

    def acknowledge(self) -> None:
        """All that `read` has returned so far is dealt with: tell those that sent it."""
        now_s = self._now()
        for peer in self._unanswered.values():
            peer.handled = peer.channel.received
            if peer.is_connected:
                self._put(peer, Ack(peer.handled, peer.echo_ns, peer.heard_s, now_s))
                if peer.channel.has_waiting:
                    self._flush(peer)  # what its connection did not take before
        self._unanswered.clear()

    def close(self) -> None:
        """Let go of the sockets; what has been sent is given a moment to leave."""
        self._monitor.close()
        self._socket.close(linger=500)
        self._authenticator.close()
        self._context.term()

    # Orders ----------------------------------------------------------------------------------------------------

    def send(self, node: str, body: bytes, replaces: str = "") -> bool:
        """Send a packet, now or when the node is back. replaces: takes the place of an older one of that key.

        False where the node has never joined, or the body is over MAX_BODY_BYTES: then nothing is kept.
        """
        peer = self._peers.by_node.get(node)
        if peer is None or len(body) > MAX_BODY_BYTES:
            return False
        peer.channel.send(body, replaces)
        self._flush(peer)
        return True

    def admit(self, key: str) -> None:
        """Let whoever holds this public key in."""
        self._authenticator.admit(key)

    def forget(self, node: str, reason: str = "") -> None:
        """The node is no longer of the job: tell it so where a reason is given, and let its place and orders go.

        It will ask to join again: `decide` has the word.
        """
        peer = self._peers.by_node.get(node)
        if peer is not None:
            self._remove(peer, reason)

    # What is known ---------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """All that have joined and were not forgotten."""
        return list(self._peers.by_node)

    def is_connected(self, node: str) -> bool:
        """Whether its newest connection stands; False also for a node that never joined."""
        peer = self._peers.by_node.get(node)
        return peer is not None and peer.is_connected

    def heard_s(self, node: str) -> float:
        """When the newest frame of a node came, in the run's seconds; -inf: never."""
        peer = self._peers.by_node.get(node)
        return float("-inf") if peer is None else peer.heard_s

    def waiting_bytes(self, node: str) -> int:
        """What a node has not acknowledged yet."""
        peer = self._peers.by_node.get(node)
        return 0 if peer is None else peer.channel.waiting_bytes

    # Frames in -------------------------------------------------------------------------------------------------

    def _read_frames(self, happened: list[tuple[str, What]]) -> None:
        socket, routes, decode = self._socket, self._peers.by_route, self._decoder.decode
        for _ in range(FRAMES_A_TURN):
            try:
                route = socket.recv(_NOW)
            except zmq.Again:
                return
            # Of each frame: one that comes while others are read was not heard when they were, and the clocks' offset
            # would be taken for surer than it is.
            now_s = self._now()
            peer = routes.get(route)
            if peer is None:
                self._from_stranger(route, now_s, happened)
                continue
            message = socket.recv(_NOW, copy=False)  # it knows by itself whether there is more
            if message.more:
                self._skip_parts()
                continue
            try:
                frame = decode(message.bytes)
            except DECODE_ERRORS:
                self.counters.malformed += 1
                continue
            if isinstance(frame, Join):
                self.counters.malformed += 1  # one a connection
            else:
                self._from_peer(peer, frame, now_s, happened)

    def _from_peer(self, peer: Peer, frame: Report | Pulse, now_s: float, happened: list[tuple[str, What]]) -> None:
        peer.heard_s = now_s
        peer.echo_ns = frame.sent_ns
        channel = peer.channel
        if frame.received and channel.has_waiting:
            channel.acknowledged(frame.received)
        self._unanswered[peer.node] = peer
        if frame.lost > peer.peer_lost:
            happened.append((peer.node, Missed(frame.lost - peer.peer_lost)))
            peer.peer_lost = frame.lost
        if isinstance(frame, Report) and channel.receive(frame.seq):
            happened.append((peer.node, Body(frame.body, peer.incarnation, frame.seq)))

    def _from_stranger(self, route: bytes, now_s: float, happened: list[tuple[str, What]]) -> None:
        """A frame of a connection that has not joined: only a Join is listened to."""
        message = self._socket.recv(_NOW, copy=False)
        if message.more:
            self._skip_parts()
            return
        try:
            join = self._decoder.decode(message.buffer)
        except DECODE_ERRORS:
            self.counters.malformed += 1
            return
        if isinstance(join, Join):
            self._join(route, int(message.get(zmq.SRCFD)), join, now_s, happened)
        else:
            self.counters.late_frames += 1

    def _skip_parts(self) -> None:
        """A message of more than one part is nobody's of ours."""
        self.counters.malformed += 1
        while self._socket.rcvmore:
            self._socket.recv(_NOW)

    # Joining ---------------------------------------------------------------------------------------------------

    def _join(self, route: bytes, fd: int, join: Join, now_s: float, happened: list[tuple[str, What]]) -> None:
        peer = self._peers.by_node.get(join.node)
        if peer is not None and peer.incarnation == join.incarnation and peer.slot == join.slot:
            if join.connection <= peer.connection:
                self.counters.late_frames += 1  # an older connection's, that was read late
                return
            happened.append((join.node, Back(join.info, now_s - peer.heard_s)))
        else:
            rivals = self._peers.rivals(join)
            reason = self._refuse(join, rivals, now_s)
            if reason:
                self.counters.joins_refused += 1
                self._put_to(route, Refusal(reason[:MAX_REASON_CHARS]))
                return
            for rival in rivals:
                if rival.is_connected:
                    happened.append((rival.node, Dropped(now_s, "replaced")))
                self._remove(rival, f"another guardrun has joined as {join.node}")
            known = self._settings.known.get(join.node)
            peer = self._peers.add(join, known, self._settings.orders_bytes, now_s)
            happened.append((join.node, Joined(join.info, join.slot, join.incarnation, bool(rivals))))
        self._connect(peer, route, fd, join, now_s)

    def _refuse(self, join: Join, rivals: list[Peer], now_s: float) -> str:
        if join.protocol != PROTOCOL:
            return f"it speaks protocol {join.protocol}, the head {PROTOCOL}: use the same guardrun on all nodes"
        if len(self._peers.by_node) - len(rivals) >= self._settings.max_nodes:
            return f"{self._settings.max_nodes} nodes have joined already"
        return self._settings.decide(join, [rival.present(now_s) for rival in rivals])

    def _connect(self, peer: Peer, route: bytes, fd: int, join: Join, now_s: float) -> None:
        self._peers.connect(peer, route, fd, join, now_s)
        self._crowd.went(fd)
        if join.hub == self.incarnation:
            peer.channel.acknowledged(join.received)
        peer.channel.rewind()
        # Not channel.received: what has come and is not dealt with yet is sent again, and known here as had already.
        welcome = Welcome(self.incarnation, peer.handled, self._settings.term_s, join.sent_ns, now_s, self._now())
        self._put(peer, welcome)
        self._flush(peer)

    def _remove(self, peer: Peer, reason: str) -> None:
        if peer.is_connected and reason:
            self._put(peer, Refusal(reason[:MAX_REASON_CHARS]))
        self._peers.remove(peer)
        self._unanswered.pop(peer.node, None)

    # Frames out ------------------------------------------------------------------------------------------------

    def _flush(self, peer: Peer) -> None:
        if not peer.is_connected:
            return
        for message in peer.channel.hand_out():
            if not self._put(peer, Order(message.seq, message.body, peer.channel.lost)):
                peer.channel.put_back(message.seq)
                return

    def _put(self, peer: Peer, frame: ToFollower) -> bool:
        return self._put_to(peer.route, frame)

    def _put_to(self, route: bytes, frame: ToFollower) -> bool:
        """False where the connection is gone (the monitor will say so) or takes no more."""
        try:
            data = self._encoder.encode(frame)
        except UnicodeEncodeError:
            data = encode_msgpack(frame)
        try:
            self._socket.send(route, _NOW_MORE)
            self._socket.send(data, _NOW)
        except zmq.ZMQError:
            self.counters.unsent += 1
            return False
        return True

    # Connections -----------------------------------------------------------------------------------------------

    def _read_monitor(self, happened: list[tuple[str, What]]) -> bool:
        """Say whether all that has happened is read."""
        events, is_all = self._monitor.read()
        for event, value in events:
            if event == zmq.EVENT_ACCEPTED:
                self.counters.accepted += 1
                self._crowd.came(value)
            elif event == zmq.EVENT_DISCONNECTED:
                self._crowd.went(value)
                if (peer := self._peers.disconnected(value)) is not None:
                    happened.append((peer.node, Dropped(self._now())))
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.counters.handshakes += 1
        if is_all:
            self._crowd.thin_out(self.port)
            counters = self.counters
            counters.sent_away = self._crowd.sent_away
            # Not by events that say so: of one that sends no greeting of ZeroMQ's there is none.
            gone = counters.accepted - counters.handshakes - len(self._crowd)
            counters.strangers = max(counters.strangers, gone)
        return is_all
