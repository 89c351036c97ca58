"""Asking the node agent: a supervisor's standing connection, and one question by who needs a single answer."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from guardrun import __version__
from guardrun.supervisor.base.framing import Unpacker
from guardrun.supervisor.client.agent_connection import Link, LinkError
from guardrun.supervisor.wire.agent_messages import (
    FROM_AGENT,
    MAX_FROM_AGENT_BYTES,
    MAX_TO_AGENT_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    Answer,
    Ask,
    EndJob,
    Facts,
    Findings,
    FromAgent,
    Hello,
    QuarantineIs,
    Refused,
    RegisterJob,
    Subscribe,
    Welcome,
    pack,
    root_socket_path,
    socket_path,
)

TIMEOUT_S = 1.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Between attempts to connect, doubling: an agent that comes back is found soon, one that isn't there costs nothing."""

_CROWD_POLL_S = 0.01

News = Welcome | Facts | Findings | QuarantineIs


class Unreachable(Exception):
    """No agent answered; says why."""


class RefusedError(Exception):
    """The agent does not do it; its own sentence."""


class AgentClient:
    """A supervisor's connection to the agent of its node, taken up again for as long as it lives. Never waits.

    `fileno()` stays the same for good, whatever becomes of the connection: poll it, and call `read()` when it is
    readable and, where there was no connection, from time to time (once a second will do).
    """

    def __init__(self, job: RegisterJob | None = None, path: Path | None = None) -> None:
        """job: registered on every connection. path: of the socket, in place of what the environment says."""
        self._job = job
        self._path = path or socket_path(os.environ)
        self._epoll = select.epoll()
        self._link: Link | None = None
        self._next_try_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.trouble = "not asked yet"
        """Why there is no agent to hear; empty while there is one."""
        self.refusal = ""
        """What the agent has last said no to, in its own words."""
        self.malformed = 0

    def fileno(self) -> int:
        """An epoll's, which is readable when the present connection is."""
        return self._epoll.fileno()

    @property
    def is_connected(self) -> bool:
        """Whether the agent has said Welcome, and has not gone since."""
        return self._link is not None and not self.trouble

    def read(self) -> list[News]:
        """What the agent has told since the last call. A Welcome begins a connection: what was known before is void."""
        if self._link is None and not self._connect():
            return []
        link = self._link
        assert link is not None
        try:
            frames = link.receive()
            if link.unsent_bytes:
                link.flush()
        except LinkError as error:
            self._drop(str(error))
            return []
        news: list[News] = []
        for frame in frames:
            message = self._decode(frame)
            if isinstance(message, Welcome):
                self.trouble = ""
                self._pause_s = FIRST_PAUSE_S
            if isinstance(message, Refused):
                self._refused(message)
            elif isinstance(message, News):
                news.append(message)
        return news

    def end_job(self) -> None:
        """Tell the agent that the run is over, if it is there to hear."""
        if self._link is None or self._job is None:
            return
        try:
            self._link.send(EndJob(run_id=self._job.run_id))
        except LinkError as error:
            self._drop(str(error))

    def close(self) -> None:
        """Close for good; the job stays registered unless `end_job` was called."""
        self._drop("closed")
        self._epoll.close()

    def _connect(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._next_try_s:
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        self._link = Link(connection, MAX_FROM_AGENT_BYTES, MAX_TO_AGENT_BYTES)
        try:
            connection.connect(os.fspath(self._path))
            self._epoll.register(connection.fileno(), select.EPOLLIN)
            for message in self._greeting():
                self._link.send(message)
        except (OSError, LinkError) as error:
            self._drop(_no_agent(self._path, error))
            return False
        self.trouble = "it has not answered yet"
        return True

    def _greeting(self) -> list[Hello | RegisterJob | Subscribe]:
        hello = Hello(protocol=PROTOCOL, oldest=OLDEST_PROTOCOL, version=__version__, program="guardrund")
        return [hello, *([self._job] if self._job else []), Subscribe()]

    def _drop(self, why: str) -> None:
        """Let go of the connection; the next one comes after a pause."""
        if self._link is not None:
            self._link.close()  # which takes it out of the epoll
            self._link = None
        self.trouble = why
        self._next_try_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _refused(self, refused: Refused) -> None:
        self.refusal = refused.why
        if self.trouble:  # before the Welcome: there will be none
            self._drop(refused.why)

    def _decode(self, frame: bytes) -> FromAgent | None:
        try:
            return FROM_AGENT.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.malformed += 1
            return None


def ask(
    verb: str, arguments: dict[str, Any] | None = None, *, path: Path | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """One question to the node's agent, and its answer's data; verbs as at `wire.Ask`.

    Raises Unreachable where none answers in time, RefusedError where it says no.
    """
    where = path or socket_path(os.environ)
    deadline_s = time.monotonic() + timeout_s
    hello = Hello(protocol=PROTOCOL, oldest=OLDEST_PROTOCOL, version=__version__, program="guardctl")
    question = Ask(id=1, verb=verb, arguments=arguments or {})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect_first(connection, where, deadline_s)
            connection.settimeout(timeout_s)
            connection.sendall(pack(hello) + pack(question))
            return _read_answer(connection, deadline_s, timeout_s)
        except TimeoutError:
            raise Unreachable(f"the node agent did not answer within {timeout_s:g} s") from None
        except OSError as error:
            raise Unreachable(_no_agent(where, error)) from None


def _connect_first(connection: socket.socket, path: Path, deadline_s: float) -> None:
    """By root's own door, where this is root and the agent has one. Raises as _connect."""
    if os.geteuid() == 0:
        try:
            return _connect(connection, root_socket_path(path), deadline_s)
        except (FileNotFoundError, ConnectionRefusedError):
            pass  # an earlier agent
    _connect(connection, path, deadline_s)


def _connect(connection: socket.socket, path: Path, deadline_s: float) -> None:
    """Raises OSError, TimeoutError where its door is crowded for so long."""
    connection.setblocking(False)
    while True:
        try:
            connection.connect(os.fspath(path))
            return
        except BlockingIOError:  # its backlog is full
            if time.monotonic() >= deadline_s:
                raise TimeoutError from None
            time.sleep(_CROWD_POLL_S)


def _read_answer(connection: socket.socket, deadline_s: float, timeout_s: float) -> dict[str, Any]:
    unpacker = Unpacker(MAX_FROM_AGENT_BYTES)
    while (left_s := deadline_s - time.monotonic()) > 0:
        connection.settimeout(left_s)
        data = connection.recv(1 << 16)
        if not data:
            raise Unreachable("the node agent has closed the connection")
        try:
            for frame in unpacker.feed(data):
                message = FROM_AGENT.decode(frame)
                if isinstance(message, Refused):
                    raise RefusedError(message.why)
                if isinstance(message, Answer):
                    return message.data
        except (ValueError, RecursionError) as error:  # msgspec's and Unicode's are ValueErrors
            raise Unreachable(f"what answered is no node agent of this version ({error})") from None
    raise TimeoutError


def _no_agent(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return f"no node agent listens at {path}"
    if isinstance(error, OSError):
        return f"{path}: {error.strerror or error}"
    return str(error)
