"""The hub's peers: followers that have joined, who may and what is told of them; and connections that have not.

Of the latter so many and no more, so that strangers cannot take all descriptors. ZeroMQ accepts whoever comes, and has
no way to send one away; to close the port would end every connection. So the descriptor itself is shut, which ZeroMQ
takes for the peer's end. Who is sent away comes from the address that most come from: the nodes of a job have one
connection each, and are back within two seconds where it met one of them.
"""

from __future__ import annotations

import os
import resource
import socket
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from guardrun.supervisor.fleet.transport.envelopes import Channel, Join

# Join admission -----------------------------------------------------------------------------------------------------
# Who may join: what is asked when two say that they are the same node, or the same place in the job.

MAX_LEVELS, MAX_SWITCH_CHARS, MAX_ROLE_CHARS = 16, 256, 256
"""More than networks have; a scheduler's list of switches of one level is one name."""
MAX_ADDRESSES, MAX_ADDRESS_CHARS = 64, 64
GONE_S = 10.0
"""A connected rival that has said nothing for so long is taken for gone: it sends something every second."""


class Present(NamedTuple):
    """A follower that has joined before."""

    node: str
    slot: int
    incarnation: int
    is_connected: bool
    silent_s: float
    """Since its last frame."""


Decide = Callable[[Join, Sequence[Present]], str]
"""May this one join, in place of those present that have its name or its slot? Empty: yes; else the reason why not."""


def switches_of(info: Mapping[str, Any]) -> list[str]:
    """Those above a node that joins, as it tells them; none where that is no list of names."""
    told = info.get("switches")
    if not isinstance(told, list) or len(told) > MAX_LEVELS:
        return []
    return told if all(isinstance(one, str) and len(one) <= MAX_SWITCH_CHARS for one in told) else []


def addresses_of(info: Mapping[str, Any]) -> list[str]:
    """Those of a node that joins, as it tells them; none where that is no list of addresses."""
    told = info.get("addresses")
    if not isinstance(told, list) or len(told) > MAX_ADDRESSES:
        return []
    return told if all(isinstance(one, str) and len(one) <= MAX_ADDRESS_CHARS for one in told) else []


def role_of(info: Mapping[str, Any]) -> str:
    """The --role of a node that joins, as it tells it; the same for all where that is no name."""
    told = info.get("role")
    return told if isinstance(told, str) and len(told) <= MAX_ROLE_CHARS else ""


def newer_if_gone(join: Join, rivals: Sequence[Present]) -> str:
    """The newer one, for the same name and slot, once the older is gone."""
    for rival in rivals:
        is_gone = not rival.is_connected or rival.silent_s > GONE_S
        if rival.node == join.node and rival.slot != join.slot:
            return (
                f"{join.node} has joined as number {rival.slot} of the job, and now says {join.slot}: start one "
                "guardrun a node, each with a --node-rank of its own"
            )
        if rival.node != join.node:
            return f"number {join.slot} of the job is {rival.node}: give each node a --node-rank of its own"
        if not is_gone:
            return f"{join.node} has joined already, and its first guardrun is still there: start one a node"
    return ""


# Hub events ---------------------------------------------------------------------------------------------------------
# What a hub tells its caller of the nodes.


class Joined(NamedTuple):
    """A follower that is new, or in a new life. What the last one has sent and was not read is lost."""

    info: dict[str, Any]
    slot: int
    incarnation: int
    is_replacement: bool
    """In the place of an earlier incarnation."""


class Body(NamedTuple):
    """What a follower has sent, in order, once."""

    body: bytes
    incarnation: int
    seq: int


class Dropped(NamedTuple):
    """A follower's connection was closed: it ended, or was killed, or will be Back."""

    at_s: float
    why: str = ""


class Back(NamedTuple):
    """The same incarnation, on a new connection; nothing of its packets is missing but what `lost` counts."""

    info: dict[str, Any]
    away_s: float
    """Since its last frame."""


class Missed(NamedTuple):
    """A follower says that it had to drop this many more packets: they were too many while nobody took them."""

    packets: int


What = Joined | Body | Dropped | Back | Missed


class Known(NamedTuple):
    """What an earlier life of the coordinator has dealt with."""

    incarnation: int
    seq: int


@dataclass
class Counters:
    """Since this coordinator began."""

    accepted: int = 0
    """Connections."""
    handshakes: int = 0
    """That succeeded."""
    strangers: int = 0
    """Connections that have gone without one: no CURVE, a wrong key, garbage, silence."""
    keys_refused: int = 0
    joins_refused: int = 0
    malformed: int = 0
    late_frames: int = 0
    """Frames of connections that have not joined, or were replaced."""
    unsent: int = 0
    """Frames that a follower's connection did not take; packets among them are sent again."""
    sent_away: int = 0
    """Connections that had not joined when there were too many of them."""


# Joined peers -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Peer:
    """A follower, connected or not."""

    node: str
    slot: int
    incarnation: int
    connection: int
    route: bytes
    fd: int
    channel: Channel
    heard_s: float
    is_connected: bool = True
    peer_lost: int = 0
    echo_ns: int = 0
    handled: int = 0
    """The newest packet that the caller has dealt with."""

    def present(self, now_s: float) -> Present:
        """As `Decide` asks for it."""
        return Present(self.node, self.slot, self.incarnation, self.is_connected, now_s - self.heard_s)


class Peers:
    """All of them. A route is kept until its peer has another: what it has brought may still be unread."""

    def __init__(self) -> None:
        self.by_node: dict[str, Peer] = {}
        self.by_route: dict[bytes, Peer] = {}
        self._fds: dict[int, bytes] = {}
        self._slots: dict[int, str] = {}

    def rivals(self, join: Join) -> list[Peer]:
        """Those that have the name, or the place in the job, of one that wants to join."""
        names = {join.node, self._slots.get(join.slot, join.node) if join.slot >= 0 else join.node}
        return [self.by_node[name] for name in sorted(names) if name in self.by_node]

    def add(self, join: Join, known: Known | None, orders_bytes: int, now_s: float) -> Peer:
        """A new one, not connected. known: what an earlier life of the coordinator has had of it."""
        channel = Channel(orders_bytes)
        if known is not None and known.incarnation == join.incarnation:
            channel.received = known.seq
        peer = Peer(join.node, join.slot, join.incarnation, join.connection, b"", -1, channel, now_s)
        peer.handled = channel.received
        self.by_node[join.node] = peer
        if join.slot >= 0:
            self._slots[join.slot] = join.node
        return peer

    def connect(self, peer: Peer, route: bytes, fd: int, join: Join, now_s: float) -> None:
        """A peer has a new connection."""
        self._unroute(peer)
        peer.route, peer.fd, peer.connection = route, fd, join.connection
        peer.heard_s, peer.echo_ns, peer.is_connected = now_s, join.sent_ns, True
        self.by_route[route] = peer
        self._fds[fd] = route

    def disconnected(self, fd: int) -> Peer | None:
        """A connection is gone: whose; None: nobody's that has joined."""
        peer = self.by_route.get(self._fds.get(fd, b""))
        if peer is not None:
            self._disconnect(peer)
        return peer

    def remove(self, peer: Peer) -> None:
        """Its place is free."""
        self._unroute(peer)
        self.by_node.pop(peer.node, None)
        if self._slots.get(peer.slot) == peer.node:
            del self._slots[peer.slot]

    def _unroute(self, peer: Peer) -> None:
        self.by_route.pop(peer.route, None)
        self._disconnect(peer)

    def _disconnect(self, peer: Peer) -> None:
        if self._fds.get(peer.fd) == peer.route:
            del self._fds[peer.fd]
        peer.is_connected = False


# Connections that have not joined -----------------------------------------------------------------------------------

ENOUGH_DESCRIPTORS = 32_768
"""A job of MAX_NODES, and room for its crowd."""


def raise_descriptor_limit() -> int:
    """Take as many descriptors as this process may have, up to ENOUGH_DESCRIPTORS; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


class ConnectionLimiter:
    """The descriptors of those that have not joined, in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._fds: dict[int, None] = {}
        self.sent_away = 0

    def __len__(self) -> int:
        return len(self._fds)

    def came(self, fd: int) -> None:
        """A connection was accepted; a descriptor that is used again counts as the newest."""
        self._fds.pop(fd, None)
        self._fds[fd] = None

    def went(self, fd: int) -> None:
        """It has joined, or is gone."""
        self._fds.pop(fd, None)

    def thin_out(self, port: int) -> None:
        """Where there are too many, send half of them away: of the commonest address first, the oldest of it first.

        port: ours; a descriptor that is no connection to it is used for something else by now, and left alone.
        """
        if len(self._fds) <= self._limit:
            return
        by_address: dict[str, list[int]] = defaultdict(list)
        for fd in self._fds:
            by_address[_peer_of(fd, port)].append(fd)
        for fd in by_address.pop("", []):
            del self._fds[fd]
        while by_address and len(self._fds) > self._limit // 2:
            commonest = max(by_address, key=lambda address: len(by_address[address]))
            fds = by_address[commonest]
            # Down to the next in number, but at least one: not a pass through all for each that goes.
            others = max((len(other) for address, other in by_address.items() if address != commonest), default=0)
            count = min(max(1, len(fds) - others), len(self._fds) - self._limit // 2)
            for fd in fds[:count]:
                _shut(fd)
                del self._fds[fd]
                self.sent_away += 1
            del fds[:count]
            if not fds:
                del by_address[commonest]


def _peer_of(fd: int, port: int) -> str:
    """The address at the other end; empty where this is no connection to our port."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
                return ""
            return str(connection.getpeername()[0])
    except OSError:
        return ""


def _shut(fd: int) -> None:
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone already
