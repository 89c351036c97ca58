"""CURVE between the nodes of a run: key pairs, and ZeroMQ sockets that use them."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import zmq

from guardrun.supervisor.fleet.transport.envelopes import MAX_FRAME_BYTES

# CURVE keys ---------------------------------------------------------------------------------------------------------
# CURVE key pairs of a run: as ZeroMQ prints them, 40 characters of Z85.


KEY_CHARS = 40
"""32 bytes in Z85 (ZeroMQ RFC 32)."""
_Z85 = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]"
_PATTERN = re.compile(_Z85 + "{40}", re.ASCII)

Key = Annotated[str, msgspec.Meta(pattern=f"^{_Z85}{{40}}$", min_length=KEY_CHARS, max_length=KEY_CHARS)]


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
"""A deputy sends something every second; these only clear away what a power cut left half open. The kernel's, not
ZeroMQ's own heartbeats: to cancel one timer, ZeroMQ walks through those of all connections, a quarter of the time that
3,000 connections cost, and growing with their square."""
UNSENT_MESSAGES = 1000
"""Kept by ZeroMQ for one deputy that does not read."""


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
    """A deputy's, for one connection: ZeroMQ makes no second one."""
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
