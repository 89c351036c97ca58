"""The deputies that have joined, as the hub finds them: by node, by place in the job, by connection."""

from __future__ import annotations

from dataclasses import dataclass

from guardrun.supervisor.fleet.transport.channel import Channel
from guardrun.supervisor.fleet.transport.envelopes import Join
from guardrun.supervisor.fleet.transport.hub_events import Known
from guardrun.supervisor.fleet.transport.join_admission import Present


@dataclass(eq=False)
class Peer:
    """A deputy, connected or not."""

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
        """As join_admission.py asks for it."""
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
