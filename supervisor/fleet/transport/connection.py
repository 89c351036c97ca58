"""One connection of a deputy to the coordinator: a socket of its own, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import zmq

from guardrun.supervisor.fleet.transport.curve_authenticator import Monitor
from guardrun.supervisor.fleet.transport.curve_keys import KeyPair
from guardrun.supervisor.fleet.transport.curve_sockets import Context, make_dealer

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
