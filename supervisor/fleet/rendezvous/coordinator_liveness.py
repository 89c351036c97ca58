"""Whether the coordinator that a join file names still listens: only it can finish a handshake for its key."""

from __future__ import annotations

import time

import zmq

from guardrun.supervisor.fleet.rendezvous.join_file import JoinFile
from guardrun.supervisor.fleet.transport.curve import Monitor

PATIENCE_S = 2.0
"""A host that is there answers in milliseconds; one that is gone, never."""


def is_listening(join: JoinFile, patience_s: float = PATIENCE_S) -> bool:
    """Ask for a handshake, and go again. Blocks for patience_s an address. False where that cannot be known."""
    return any(_is_listening_at(host, join, patience_s) for host in join.addresses)


def _is_listening_at(host: str, join: JoinFile, patience_s: float) -> bool:
    if join.client is None:
        return False
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.curve_serverkey = join.server_key.encode()
        socket.curve_publickey = join.client.public.encode()
        socket.curve_secretkey = join.client.secret.encode()
        socket.set(zmq.IPV6, 1)
        socket.set(zmq.LINGER, 0)
        monitor = Monitor(context, socket)
        try:
            socket.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{join.port}")
            return _succeeds(monitor, time.monotonic() + patience_s)
        except zmq.ZMQError:
            return False  # a name that does not resolve, or no descriptors
        finally:
            monitor.close()


def _succeeds(monitor: Monitor, by_s: float) -> bool:
    """Whether a handshake does in time. Nothing listens: the first refusal is enough."""
    while (left_s := by_s - time.monotonic()) > 0:
        if monitor.socket.poll(int(left_s * 1000) + 1):
            events = [one.event for one in monitor.read()[0]]
            if zmq.EVENT_HANDSHAKE_SUCCEEDED in events:
                return True
            if zmq.EVENT_CLOSED in events or zmq.EVENT_DISCONNECTED in events:
                return False
    return False
