"""CURVE between the nodes of a run: key pairs, ZeroMQ sockets that use them, and who is let in at one.

What ZeroMQ tells about a socket's connections: who asks to be let in (its authentication protocol, ZAP), who came, who
went (its monitor).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import Annotated, NamedTuple

import msgspec
import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from guardrun.supervisor.fleet.transport.envelopes import MAX_FRAME_BYTES

# CURVE keys ---------------------------------------------------------------------------------------------------------
# CURVE key pairs of a run: as ZeroMQ prints them, 40 characters of Z85.

KEY_CHARS = 40
"""32 bytes in Z85 (ZeroMQ RFC 32)."""
_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]"
_PATTERN = re.compile(_Z85 + "{40}", re.ASCII)

Key = Annotated[str, msgspec.Meta(pattern=f"^{_Z85}{{40}}$", min_length=KEY_CHARS, max_length=KEY_CHARS)]

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


class KeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """A public key and its secret. Never printed: the text of one shows the public key alone."""

    public: Key
    secret: Key

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def make_key_pair() -> KeyPair:
    """A new pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public=public.decode(), secret=secret.decode())


def is_key(text: str) -> bool:
    """Say whether a text is a key's form."""
    return _PATTERN.fullmatch(text) is not None


# CURVE sockets ------------------------------------------------------------------------------------------------------

Context = zmq.Context[zmq.Socket[bytes]]

BACKLOG = 4096
"""Connections that the kernel keeps for a coordinator that is busy: a whole job joins at once."""
KEEPALIVE_S = 20
KEEPALIVES = 4
KEEPALIVE_EVERY_S = 5
"""A follower sends something every second; these only clear away what a power cut left half open. The kernel's, not
ZeroMQ's own heartbeats: to cancel one timer, ZeroMQ walks through those of all connections, a quarter of the time that
3,000 connections cost, and growing with their square."""
UNSENT_MESSAGES = 1000
"""Kept by ZeroMQ for one follower that does not read."""

ENDED_LINGER_MS = 0
"""ZMQ_LINGER from before a socket is bound or connected, whatever it is closed with. A connection that ends by itself
is given what its listener was made with, endless unless it is said: its session then waits for somebody to read what
was under way, and nobody does. Where both ends close at the same moment, zmq_ctx_term never returned (libzmq 4.3.5)."""


def make_router(context: Context, keys: KeyPair, handshake_ms: int) -> zmq.Socket[bytes]:
    """The coordinator's, not bound yet. handshake_ms: a stranger that says nothing is cut off after this."""
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, ENDED_LINGER_MS)
    socket.curve_server = True
    socket.curve_secretkey = keys.secret.encode()
    socket.set(zmq.IPV6, 1)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.set(zmq.BACKLOG, BACKLOG)
    socket.set(zmq.SNDHWM, UNSENT_MESSAGES)
    socket.set(zmq.HANDSHAKE_IVL, handshake_ms)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S)
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_EVERY_S)
    socket.set(zmq.TCP_KEEPALIVE_CNT, KEEPALIVES)
    socket.set(zmq.TCP_MAXRT, 1000 * (KEEPALIVE_S + KEEPALIVES * KEEPALIVE_EVERY_S))
    socket.set(zmq.ROUTER_MANDATORY, 1)
    return socket


def make_dealer(context: Context, keys: KeyPair, server_key: str) -> zmq.Socket[bytes]:
    """A follower's, for one connection: ZeroMQ makes no second one."""
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.LINGER, ENDED_LINGER_MS)
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.set(zmq.IPV6, 1)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.set(zmq.SNDHWM, 0)  # bounded by the channel
    socket.set(zmq.RECONNECT_IVL, -1)
    return socket


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
