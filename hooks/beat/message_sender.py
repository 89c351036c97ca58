"""The way out: messages, encoded and pushed. Imported and used by the hooks' thread only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire import messages
from guardrun.hooks.wire.zmtp_push import Push

BEATS_SOCKET = "beats"
LINGER_S = 2.0
"""At the end: how long the last messages may take, where a supervisor is there and does not read: it may stand for a
second on a busy node. Where none listens any more, nothing is waited for."""
MAX_ARGUMENTS = 100
MAX_ARGUMENT_CHARS = 500


DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
MAX_VARIABLE_CHARS = 1000
"""Sixteen UUIDs are 650."""
TOO_LONG = "?"
"""In place of one that is longer: a part of it would name other devices, and so would none."""


def read_device_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that are set."""
    values = {name: environ[name] for name in DEVICE_VARIABLES if name in environ}
    return {name: value if len(value) <= MAX_VARIABLE_CHARS else TOO_LONG for name, value in values.items()}


class Sender:
    """Encodes and sends; what can't be sent at once is dropped."""

    def __init__(self, rank: Rank) -> None:
        """That nobody is there yet is no error."""
        self._rank = rank
        self._encoder = msgspec.msgpack.Encoder()
        self._push = Push(os.path.join(rank.sockets, BEATS_SOCKET))

    def hello(self) -> None:
        """Say that this rank is watched."""
        argv = [str(argument)[:MAX_ARGUMENT_CHARS] for argument in getattr(sys, "argv", [])[:MAX_ARGUMENTS]]
        self.send(
            "Hello",
            {
                "local_rank": self._rank.local_rank,
                "world_size": self._rank.world_size,
                "node": os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
                "python": sys.version.split()[0],
                "argv": argv,
                "devices": read_device_variables(os.environ),
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
        return self._push.send(data)

    def close(self) -> None:
        """Give what is under way its last chance: LINGER_S."""
        self._push.close(LINGER_S)


def _printable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    if isinstance(value, tuple):
        return tuple(_printable(entry) for entry in value)
    return value
