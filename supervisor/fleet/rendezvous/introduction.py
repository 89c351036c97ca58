"""How a node comes to the coordinator where no folder is shared: both show each other a MUNGE credential.

    node                                             coordinator (a port of its own, plain TCP)
    makes a key pair
    ── credential for the user: public key, run key, nonce ──▶  decodes it: our uid? our run? fresh, not seen before?
                                                                admits that key
    ◀── credential for the user: nonce, the join file ───────  (without a client pair: the node has its own)

One question and one answer a connection, each a length in four bytes and a credential. To whoever does not hold a
credential of this user for this run nothing is said. What is held for strangers is bounded: so many connections, each
for some seconds and some kilobytes; at the bound the one that has been silent longest gives way. Credentials are
decoded by worker threads: munged may be slow, the supervisor's loop may not.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from guardrun.supervisor.base.framing import LENGTH, frame
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.base.printable import encode_json
from guardrun.supervisor.fleet.rendezvous import munge
from guardrun.supervisor.fleet.rendezvous.join_file import JoinError, JoinFile, parse_join_file
from guardrun.supervisor.fleet.transport.curve import Key, KeyPair, make_key_pair
from guardrun.supervisor.fleet.transport.envelopes import DECODE_ERRORS
from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, Listen, open_listener, open_listeners

MAX_AT_ONCE = 256
ACCEPTS_A_TURN = 64
PATIENCE_S = 5.0
"""For a question to arrive; as much again for the answer to leave."""
WORKERS = 2
BACKLOG = 1024
_PLACE = Path("the coordinator's answer")


class IntroductionError(Exception):
    """The coordinator did not introduce itself; says why. `is_final`: asking again will not help."""

    def __init__(self, text: str, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class _Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run_key: str
    public: Key
    nonce: str


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    nonce: str
    join: msgspec.Raw


@dataclass
class Counters:
    """How introductions have ended, since this supervisor began."""

    introduced: int = 0
    refused: int = 0
    crowded_out: int = 0
    """Gave way to another at the bound."""
    late: int = 0


@dataclass(eq=False)
class _Guest:
    socket: socket.socket
    until_s: float
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""
    is_asking: bool = False
    """Its question is with a worker."""


class Introducer:
    """The coordinator's side, in its own poll loop. Raises OSError where the port is taken."""

    def __init__(
        self,
        port: int,
        run_key: str,
        join: JoinFile,
        admit: Callable[[str], None],
        *,
        listen: Listen = EVERYWHERE,
        munge_socket: str = "",
    ) -> None:
        """run_key: what the nodes know the run by before they know anything of it (the scheduler's job and step).

        admit: lets a public key in (Hub.admit).
        """
        self.join = msgspec.structs.replace(join, client=None)
        self.counters = Counters()
        self._run_key = run_key
        self._admit = admit
        self._munge_socket = munge_socket
        self._listeners = open_listeners(listen, port, BACKLOG)
        self.port = int(self._listeners[0].getsockname()[1])
        self._guests: dict[int, _Guest] = {}
        self._poller: zmq.Poller | None = None
        self._done: queue.SimpleQueue[tuple[_Guest, str, bytes]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="guardrun-munge")

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wait for all that `read` reads, guests that come later too."""
        self._poller = poller
        for listener in self._listeners:
            poller.register(listener.fileno(), zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)

    def listen_also(self, addresses: Iterable[str]) -> list[str]:
        """Listen at these, too; returns those that are new, and can be listened at."""
        found = []
        for address in addresses:
            with suppress(OSError):  # EADDRINUSE where this one listens already, there or everywhere
                listener = open_listener(address, self.port, BACKLOG)
                self._listeners.append(listener)
                found.append(address)
                if self._poller is not None:
                    self._poller.register(listener.fileno(), zmq.POLLIN)
        return found

    def read(self, ready: Mapping[Any, int]) -> None:
        """To be called after every poll, and once a second."""
        now_s = time.monotonic()
        for listener in self._listeners:
            if listener.fileno() in ready:
                self._accept(listener, now_s)
        for fd, guest in list(self._guests.items()):
            if fd in ready:
                self._serve(guest, now_s)
        if self._wake in ready:
            self._take_answers(now_s)
        for guest in [guest for guest in self._guests.values() if now_s >= guest.until_s]:
            self.counters.late += 1
            self._let_go(guest)

    def close(self) -> None:
        """Send all guests away; waits for a running munge command, munge.TIMEOUT_S at most."""
        for guest in list(self._guests.values()):
            self._let_go(guest)
        if self._poller is not None:
            for listener in self._listeners:
                self._poller.unregister(listener.fileno())
            self._poller.unregister(self._wake)
        for listener in self._listeners:
            listener.close()
        self._pool.shutdown(wait=True, cancel_futures=True)  # a command that runs is given munge.TIMEOUT_S at most
        os.close(self._wake)

    # Guests ----------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, now_s: float) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody more; or out of descriptors
                return
            if len(self._guests) >= MAX_AT_ONCE:
                idle = [guest for guest in self._guests.values() if not guest.is_asking]
                if not idle:
                    connection.close()
                    self.counters.crowded_out += 1
                    continue
                self.counters.crowded_out += 1
                self._let_go(min(idle, key=lambda guest: guest.until_s))
            connection.setblocking(False)
            self._guests[connection.fileno()] = _Guest(connection, now_s + PATIENCE_S)
            if self._poller is not None:
                self._poller.register(connection.fileno(), zmq.POLLIN)

    def _serve(self, guest: _Guest, now_s: float) -> None:
        if guest.unsent:
            self._send(guest)
            return
        try:
            data = guest.socket.recv(munge.MAX_CREDENTIAL_BYTES + LENGTH.size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or guest.is_asking:
            self._let_go(guest)  # closed, or says more than its question
            return
        guest.unread += data
        if len(guest.unread) < LENGTH.size:
            return
        (length,) = LENGTH.unpack_from(guest.unread)
        if not 0 < length <= munge.MAX_CREDENTIAL_BYTES or len(guest.unread) > LENGTH.size + length:
            self._refuse(guest)
        elif len(guest.unread) == LENGTH.size + length:
            guest.is_asking = True
            guest.until_s = now_s + 4 * munge.TIMEOUT_S  # two commands, perhaps behind two others
            self._pool.submit(self._work, guest, bytes(guest.unread[LENGTH.size :]))

    def _take_answers(self, now_s: float) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        while not self._done.empty():
            guest, key, answer = self._done.get()
            if guest.socket.fileno() < 0:
                continue  # gave up
            if not answer:
                self._refuse(guest)
                continue
            self._admit(key)
            guest.unsent = answer
            guest.until_s = now_s + PATIENCE_S
            self.counters.introduced += 1
            if self._poller is not None:
                self._poller.register(guest.socket.fileno(), zmq.POLLOUT)
            self._send(guest)

    def _send(self, guest: _Guest) -> None:
        try:
            guest.unsent = guest.unsent[guest.socket.send(guest.unsent) :]
        except BlockingIOError:
            return
        except OSError:
            guest.unsent = b""
        if not guest.unsent:
            self._let_go(guest)

    def _refuse(self, guest: _Guest) -> None:
        self.counters.refused += 1
        self._let_go(guest)

    def _let_go(self, guest: _Guest) -> None:
        fd = guest.socket.fileno()
        if self._guests.get(fd) is guest:
            del self._guests[fd]
            if self._poller is not None:
                self._poller.unregister(fd)
        guest.socket.close()

    # Worker threads ----------------------------------------------------------------------------------------------

    def _work(self, guest: _Guest, credential: bytes) -> None:
        """Judge a question, and make its answer; nothing where there is none to give."""
        key, answer = "", b""
        try:
            key, answer = self._judge(credential)
        except munge.MungeError:
            pass
        finally:
            self._done.put((guest, key, answer))
            os.eventfd_write(self._wake, 1)

    def _judge(self, credential: bytes) -> tuple[str, bytes]:
        """(the key to admit, the answer). Raises munge.MungeError."""
        uid, payload = munge.decode(credential, self._munge_socket)
        if uid != os.geteuid():
            raise munge.MungeError(f"it is uid {uid}'s")
        try:
            question = msgspec.json.decode(payload, type=known_type(_Question))
        except DECODE_ERRORS:
            raise munge.MungeError("no question") from None
        if question.run_key != self._run_key:
            raise munge.MungeError("it is about another run")
        answer = _Answer(nonce=question.nonce, join=msgspec.Raw(encode_json(self.join)))
        made = munge.encode(msgspec.json.encode(answer), os.geteuid(), self._munge_socket)
        return question.public, frame(made)


def introduce(
    address: str, port: int, run_key: str, *, timeout_s: float = 20.0, munge_socket: str = ""
) -> tuple[JoinFile, KeyPair]:
    """The node's side: what the join file would say, and the pair of keys that is now admitted. Blocks.

    Raises IntroductionError.
    """
    pair = make_key_pair()
    nonce = secrets.token_hex(16)
    question = msgspec.json.encode(_Question(run_key=run_key, public=pair.public, nonce=nonce))
    try:
        credential = munge.encode(question, os.geteuid(), munge_socket)
        answer = _ask(address, port, credential, time.monotonic() + timeout_s)
        uid, payload = munge.decode(answer, munge_socket)
    except munge.MungeError as error:
        raise IntroductionError(f"munge: {error}", is_final=True) from None
    if uid != os.geteuid():
        raise IntroductionError(f"{address}:{port} is uid {uid}'s, not ours", is_final=True)
    try:
        said = msgspec.json.decode(payload, type=known_type(_Answer))
        join = parse_join_file(_PLACE, bytes(said.join))
    except DECODE_ERRORS:
        raise IntroductionError(f"{address}:{port} answered what cannot be read", is_final=True) from None
    except JoinError as error:
        raise IntroductionError(str(error), is_final=True) from None
    if said.nonce != nonce:
        raise IntroductionError(f"{address}:{port} answered another question", is_final=True)
    return join, pair


def _ask(address: str, port: int, credential: bytes, until_s: float) -> bytes:
    """Send a credential, and return the one that comes back. Raises IntroductionError."""
    place = f"{address}:{port}"
    try:
        with closing(socket.create_connection((address, port), timeout=max(0.1, until_s - time.monotonic()))) as server:
            server.sendall(frame(credential))
            (length,) = LENGTH.unpack(_receive(server, LENGTH.size, until_s))
            if not 0 < length <= munge.MAX_CREDENTIAL_BYTES:
                raise IntroductionError(f"{place} answered what is no credential", is_final=True)
            return _receive(server, length, until_s)
    except EOFError:
        raise IntroductionError(f"{place} does not want us: another run, another user, or too busy") from None
    except OSError as error:
        raise IntroductionError(f"{place}: {error.strerror or 'no answer in time'}") from None


def _receive(server: socket.socket, size: int, until_s: float) -> bytes:
    """Exactly so many bytes. Raises EOFError, OSError."""
    data = b""
    while len(data) < size:
        server.settimeout(max(0.001, until_s - time.monotonic()))
        part = server.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
