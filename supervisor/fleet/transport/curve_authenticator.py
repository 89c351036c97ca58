"""What ZeroMQ tells about a socket's connections: who is let in, who came, who went."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

REQUESTS_A_TURN = 500
EVENTS_A_TURN = 5000
ZAP_ADDRESS = "inproc://zeromq.zap.01"
"""ZeroMQ RFC 27; one for each context."""
_MONITORED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_monitors = count()


class CurveAuthenticator:
    """Answers ZeroMQ's question who may come in (ZAP), for one context: those that hold an admitted key.

    The refused are told nothing: status 300 drops them without a word, where 400 would answer.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Iterable[str] = ()) -> None:
        self._admitted = {z85.decode(key.encode()) for key in keys}
        self.refused = 0
        self.malformed = 0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(ZAP_ADDRESS)

    def admit(self, key: str) -> None:
        """key: a public CURVE key in Z85; who holds it is let in from now on."""
        self._admitted.add(z85.decode(key.encode()))

    def answer(self) -> None:
        """Answer what has been asked; never waits."""
        for _ in range(REQUESTS_A_TURN):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._reply(request), zmq.NOBLOCK)

    def close(self) -> None:
        """Close the router first: ZeroMQ lets everybody in where nobody answers."""
        self.socket.close(linger=0)

    def _reply(self, request: list[bytes]) -> list[bytes]:
        """RFC 27: version, request id, domain, address, identity, mechanism, credentials."""
        version, request_id = [*request[:2], b"", b""][:2]
        if len(request) != 7 or version != b"1.0" or request[5] != b"CURVE":
            self.malformed += 1
        elif request[6] in self._admitted:
            return [version, request_id, b"200", b"", b"", b""]
        else:
            self.refused += 1
        return [version, request_id, b"300", b"", b"", b""]


class Happening(NamedTuple):
    """One of zmq.EVENT_…, and its value: a descriptor, an errno, a status, as the event has it."""

    event: int
    value: int


class Monitor:
    """A socket's own account of its connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        address = f"inproc://monitor-{next(_monitors)}"
        socket.monitor(address, _MONITORED)
        self._watched = socket
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.socket.set(zmq.RCVHWM, 0)  # a full one would make ZeroMQ's own thread wait for us
        self.socket.set(zmq.LINGER, 0)
        self.socket.connect(address)

    def read(self) -> tuple[list[Happening], bool]:
        """What has happened, and whether that is all of it."""
        happened: list[Happening] = []
        for _ in range(EVENTS_A_TURN):
            try:
                message = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return happened, True
            happened.append(Happening(message["event"], message["value"]))
        return happened, False

    def close(self) -> None:
        """Before the watched socket is closed."""
        self._watched.disable_monitor()
        self.socket.close(linger=0)
