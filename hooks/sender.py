"""The way out: a ZeroMQ PUSH socket that never waits. Imported and used by the hooks' thread only."""

from __future__ import annotations

import os
import platform
import sys

import msgspec
import zmq

from guardrun.hooks import messages
from guardrun.hooks.process import OWN_THREADS
from guardrun.hooks.rank import Rank

BEATS_SOCKET = "beats"
LINGER_MS = 100
"""At the end: how long the last messages may take; without a supervisor this is what the end of a rank costs."""
SEND_LIMIT = 1000
"""Messages that wait inside ZeroMQ while the supervisor is away."""
MAX_ARGUMENTS = 100
MAX_ARGUMENT_CHARS = 500
ZMQ_THREADS = 2


class Sender:
    """Encodes and sends; what can't be sent at once is dropped."""

    def __init__(self, rank: Rank) -> None:
        """Connect; raises zmq.ZMQError. That nobody is there yet is no error."""
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.Context(io_threads=1)
        OWN_THREADS["zmq"] = ZMQ_THREADS
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.set(zmq.LINGER, LINGER_MS)
        self._socket.set(zmq.SNDHWM, SEND_LIMIT)
        self._socket.set(zmq.RECONNECT_IVL, 100)
        self._socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        self._socket.connect("ipc://" + os.path.join(rank.sockets, BEATS_SOCKET))

    def hello(self) -> None:
        """Say that this rank is watched."""
        argv = [str(argument)[:MAX_ARGUMENT_CHARS] for argument in getattr(sys, "argv", [])[:MAX_ARGUMENTS]]
        self.send(
            "Hello",
            {
                "local_rank": self._rank.local_rank,
                "world_size": self._rank.world_size,
                "node": os.environ.get("SLURMD_NODENAME") or platform.node(),
                "python": platform.python_version(),
                "argv": argv,
            },
        )

    def send(self, kind: str, fields: dict[str, object]) -> bool:
        """Send a message; False when it was dropped."""
        rank = self._rank
        message = getattr(messages, kind)(attempt=rank.attempt, global_rank=rank.global_rank, pid=rank.pid, **fields)
        try:
            data = self._encoder.encode(message)
        except UnicodeEncodeError:  # A lone surrogate: an undecodable file name, for instance.
            clean = {key: _printable(value) for key, value in fields.items()}
            data = self._encoder.encode(msgspec.structs.replace(message, **clean))
        if len(data) > messages.MAX_MESSAGE_BYTES:
            return False
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.ZMQError:  # EAGAIN: nobody takes them fast enough, or nobody is there.
            return False
        return True

    def close(self) -> None:
        """Give what is under way its last chance: LINGER_MS."""
        self._socket.close()
        self._context.term()


def _printable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    if isinstance(value, tuple):
        return tuple(_printable(entry) for entry in value)
    return value
