"""What no rank and no tool of a run would say on its sockets."""

from __future__ import annotations

import os

import msgspec
import zmq

from guardrun.hooks.wire import messages as msg


def hostile_frames(attempt_of_nobody: int = 77) -> list[bytes]:
    """10,000 frames that no rank of this run would send: noise, cut and wrong messages, other ranks, a bomb or two."""
    beat = msg.Beat(attempt=0, global_rank=0, pid=1, sent_ns=1)
    whole = msgspec.msgpack.encode(beat)
    stranger = msgspec.msgpack.encode(msgspec.structs.replace(beat, attempt=attempt_of_nobody))
    kinds = [
        b"",
        b"\xff" * 64,
        os.urandom(200),
        whole[:-3],
        msgspec.msgpack.encode({"type": "beat", "attempt": "zero"}),
        msgspec.msgpack.encode({"type": "no_such_kind", "attempt": 0}),
        b"\x91" * 20_000,  # arrays in arrays
        b"\xdf\xff\xff\xff\xff",  # a map that says it holds 4 G entries
        stranger,
        b'{"type": "beat"}',
    ]
    return kinds * 1000


def send_frames(kind: int, address: str, frames: list[bytes]) -> None:
    context = zmq.Context()
    socket = context.socket(kind)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.SNDTIMEO, 20_000)
    socket.connect(address)
    try:
        for frame in frames:
            socket.send(frame)
    finally:
        socket.close(linger=20_000)
        context.term()
