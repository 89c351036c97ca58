"""Asking a run's supervisor: one Ask out, one Answer back, in bounded time."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.own_files import name_user
from guardrun.supervisor.rundir.run_directory import RunFile
from guardrun.supervisor.wire.control_messages import CONTROL_SOCKET, Answer, Ask

TIMEOUT_S = 5.0
STACKS_TIMEOUT_S = 20.0
"""A look at every rank's process tree takes some seconds where py-spy has to wait."""
LAST_S = 1.0
"""After its supervisor has ended: what it had said by then may still be on its way."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Stacks of many ranks; the supervisor is the user's own process."""


class Unreachable(Exception):
    """No supervisor answered; says why."""


def ask(
    run: RunFile, run_dir: Path, verb: str, arguments: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> Answer:
    """Ask, and wait for the answer. run_dir: where run's record lies. Raises Unreachable."""
    path = Path(run.socket_dir) / CONTROL_SOCKET
    question = msgspec.msgpack.encode(Ask(verb=verb, arguments=arguments or {}))
    try:
        with _held(path, run_dir) as held, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MAX_ANSWER_BYTES)
            socket.set(zmq.SNDTIMEO, int(timeout_s * 1000))
            with socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as ended:
                socket.connect(f"ipc://{held}")
                try:
                    return _ask(socket, ended, question, timeout_s)
                finally:
                    socket.disable_monitor()
    except zmq.ZMQError as error:
        raise Unreachable(f"{path}: {error}") from None


@contextmanager
def _held(path: Path, run_dir: Path) -> Iterator[str]:
    """A path that leads to this socket, whatever path leads to meanwhile; by root, of the run's owner or root alone.

    Root asks the runs of all users, and their records say where: that may be another one's supervisor.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Unreachable("its supervisor's socket is gone: the run is over, or it runs on another node") from None
    except (OSError, ValueError) as error:
        raise Unreachable(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        found, owner = os.fstat(fd), os.stat(run_dir).st_uid
        if not stat.S_ISSOCK(found.st_mode):
            raise Unreachable(f"{path} is no socket")
        if os.geteuid() == 0 and found.st_uid not in (0, owner):
            raise Unreachable(f"{path} belongs to {name_user(found.st_uid)}, and the run to {name_user(owner)}")
        yield f"/proc/self/fd/{fd}"
    except OSError as error:
        raise Unreachable(f"{path}: {error.strerror}") from None
    finally:
        os.close(fd)


def _ask(socket: zmq.Socket[bytes], ended: zmq.Socket[bytes], question: bytes, timeout_s: float) -> Answer:
    """ended: tells that whoever was connected is there no more."""
    deadline_s = time.monotonic() + timeout_s
    socket.send(question)
    decoder = msgspec.msgpack.Decoder(known_type(Answer))
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(ended, zmq.POLLIN)
    has_ended = False
    while (left_s := deadline_s - time.monotonic()) > 0:
        ready = dict(poller.poll(int(left_s * 1000) + 1))
        if socket in ready:
            try:
                return decoder.decode(socket.recv_multipart()[-1])
            except msgspec.DecodeError:
                continue  # not meant for us; the answer may still come
        if ended in ready:
            poller.unregister(ended)
            has_ended, deadline_s = True, min(deadline_s, time.monotonic() + LAST_S)
    if has_ended:
        raise Unreachable("its supervisor ended before it had answered: the run is over, or has a new one")
    raise Unreachable(f"its supervisor did not answer within {timeout_s:g} s (stopped, or very busy)")
