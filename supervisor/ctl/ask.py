"""Asking a run's supervisor: one Ask out, one Answer back, in bounded time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.rundir import RunFile
from guardrun.supervisor.wire import CONTROL_SOCKET, Answer, Ask

TIMEOUT_S = 5.0
STACKS_TIMEOUT_S = 20.0
"""A look at every rank's process tree takes some seconds where py-spy has to wait."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Stacks of many ranks; the supervisor is the user's own process."""


class Unreachable(Exception):
    """No supervisor answered; says why."""


def ask(run: RunFile, verb: str, arguments: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S) -> Answer:
    """Ask, and wait for the answer. Raises Unreachable."""
    path = Path(run.socket_dir) / CONTROL_SOCKET
    try:
        is_socket = path.is_socket()
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from None
    if not is_socket:
        raise Unreachable("its supervisor's socket is gone: the run is over, or it runs on another node")
    question = msgspec.msgpack.encode(Ask(verb=verb, arguments=arguments or {}))
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
            socket.set(zmq.SNDTIMEO, int(timeout_s * 1000))
            socket.connect(f"ipc://{path}")
            return _ask(socket, question, timeout_s)
    except zmq.ZMQError as error:
        raise Unreachable(f"{path}: {error}") from None


def _ask(socket: zmq.Socket[bytes], question: bytes, timeout_s: float) -> Answer:
    deadline_s = time.monotonic() + timeout_s
    socket.send(question)
    decoder = msgspec.msgpack.Decoder(Answer)
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not socket.poll(int(left_s * 1000) + 1):
            continue
        try:
            return decoder.decode(socket.recv_multipart()[-1])
        except msgspec.DecodeError:
            continue  # not meant for us; the answer may still come
    raise Unreachable(f"its supervisor did not answer within {timeout_s:g} s (stopped, or very busy)")
