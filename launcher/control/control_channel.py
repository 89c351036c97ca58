"""The launcher's end of the control channel: facts go out and are kept until acknowledged, orders come in.

Nothing here ever waits. A supervisor that is gone, wedged or stopped costs the launcher nothing but a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_msgpack
from guardrun.supervisor.wire.control_messages import (
    CONTROL_SOCKET,
    MAX_CONTROL_BYTES,
    Ack,
    Fact,
    Finish,
    LauncherHello,
    Lease,
    Start,
    Stop,
    ToLauncher,
)

Order = Start | Stop | Finish

RECONNECT_MS = 20

SEQS_PER_SESSION = 1_000_000
"""A continued run's facts are numbered on from here, so that none looks like one that the journal already has."""


class Control:
    """The DEALER. `fileno`-like registration with a zmq.Poller goes through `socket`, which changes at each connect."""

    def __init__(self, sockets: Path, say_hello: Callable[[bool], LauncherHello], session: int) -> None:
        """say_hello: who is alive right now, given is_first."""
        self._address = f"ipc://{sockets / CONTROL_SOCKET}"
        self._say_hello = say_hello
        self._context = zmq.Context()
        self._decoder: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(known_type(ToLauncher))
        self._seq = session * SEQS_PER_SESSION
        self._unacknowledged: dict[int, bytes] = {}
        self._was_heard = False
        self.malformed = 0
        self.lease: Lease | None = None
        """The newest that a supervisor has said."""
        self.socket = self._connect()

    def connect_anew(self) -> None:
        """For a new supervisor: drop what was queued for the old one, then hello and every fact not acknowledged."""
        self.socket.close(linger=0)
        self.socket = self._connect()

    def send_fact(self, make: Callable[[int], Fact]) -> int:
        """Send a fact, made with its number, and keep it until it is acknowledged; answers the number."""
        self._seq += 1
        data = encode_msgpack(make(self._seq))
        self._unacknowledged[self._seq] = data
        self._send(data)
        return self._seq

    def is_acknowledged(self, seq: int) -> bool:
        """Say whether a supervisor has the fact of that number in its journal, or had."""
        return seq not in self._unacknowledged

    def ping(self) -> None:
        """Ask for a sign of life: an Ack(0) comes back."""
        self._send(encode_msgpack(self._say_hello(False)))

    def read(self) -> tuple[list[Order], bool]:
        """The orders that have come, and whether anything at all has."""
        orders: list[Order] = []
        is_alive = False
        while (data := self._receive()) is not None:
            try:
                message = self._decoder.decode(data)
            except msgspec.DecodeError:
                self.malformed += 1
                continue
            is_alive = self._was_heard = True
            if isinstance(message, Ack):
                self._forget(message.seq)
            elif isinstance(message, Lease):
                self.lease = message
            else:
                orders.append(message)
        return orders, is_alive

    @property
    def has_unacknowledged(self) -> bool:
        """Whether the supervisor has yet to write a fact into its journal."""
        return bool(self._unacknowledged)

    def close(self) -> None:
        """Close without waiting: what has not been sent yet is lost."""
        self.socket.close(linger=0)
        self._context.term()

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.MAXMSGSIZE, MAX_CONTROL_BYTES)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.set(zmq.SNDHWM, 0)
        socket.connect(self._address)
        self.socket = socket
        self._send(encode_msgpack(self._say_hello(not self._was_heard)))
        for data in self._unacknowledged.values():
            self._send(data)
        return socket

    def _forget(self, seq: int) -> None:
        """Facts arrive in order: an acknowledgement holds for all before it."""
        for known in [known for known in self._unacknowledged if known <= seq]:
            del self._unacknowledged[known]

    def _send(self, data: bytes) -> None:
        try:
            self.socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            pass  # facts are kept and sent again to the next supervisor; the others don't matter

    def _receive(self) -> bytes | None:
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return None
