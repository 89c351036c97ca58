"""Everybody who is connected to the agent: who they are, what they want to hear, and how much they may have waiting."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from guardrun.supervisor.node.link import Link, LinkError
from guardrun.supervisor.node.wire import (
    MAX_FROM_AGENT_BYTES,
    MAX_TO_AGENT_BYTES,
    TO_AGENT,
    FromAgent,
    OversizeError,
    Peer,
    ToAgent,
    pack,
    read_peer,
)
from guardrun.supervisor.ownfiles import make_folders

MAX_CLIENTS = 256
MAX_OF_ONE_USER = 64
"""But for root: nobody keeps the others out."""
UNSENT_BYTES = MAX_FROM_AGENT_BYTES + 4 * 1024 * 1024
"""One answer of the largest kind, and some time of facts; who reads no faster is let go."""
ALL_UNSENT_BYTES = 48 * 1024 * 1024
"""Of all together: the agent stays within the memory that its unit gives it."""
MAX_OPEN_ASKS = 2
"""Of one client, of those that a disk has to be asked for: nobody keeps it from the others."""
HELLO_S = 5.0
_ACCEPTS_A_TURN = 64


class Client:
    """One connection."""

    def __init__(self, link: Link, peer: Peer, since_s: float) -> None:
        self.link = link
        self.peer = peer
        self.since_s = since_s
        self.protocol = 0
        """0 before Hello."""
        self.program = ""
        self.wants_facts = False
        self.wants_findings = False
        self.malformed = 0
        self.open_asks = 0
        """Questions of its own that are still to be answered."""


class Clients:
    """Accepts, reads, sends and lets go; what a message asks for is its taker's work."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        take: Callable[[Client, ToAgent], None],
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._take = take
        self._clients: dict[int, Client] = {}
        self.refused = 0
        """Connections that there was no room for."""
        self.malformed = 0
        selector.register(listener, selectors.EVENT_READ, self._accept_all)

    def __len__(self) -> int:
        return len(self._clients)

    def subscribers(self) -> list[Client]:
        return [client for client in self._clients.values() if client.wants_facts or client.wants_findings]

    def send(self, client: Client, message: FromAgent) -> None:
        """Raises OversizeError where the message is more than anybody takes."""
        frame = pack(message)
        if len(frame) > MAX_FROM_AGENT_BYTES:
            raise OversizeError(f"{len(frame)} bytes are more than an answer may have ({MAX_FROM_AGENT_BYTES})")
        self._send_frame(client, frame)

    def broadcast(self, message: FromAgent, to: list[Client]) -> None:
        """The same to many, encoded once."""
        if not to:
            return
        frame = pack(message)
        for client in to:
            self._send_frame(client, frame)

    def drop(self, client: Client) -> None:
        fd = client.link.fileno()
        if self._clients.pop(fd, None) is not None:
            self._selector.unregister(fd)
            client.link.close()

    def drop_silent(self, now_s: float) -> None:
        """Let go of connections on which nobody has said Hello."""
        for client in list(self._clients.values()):
            if client.protocol == 0 and now_s - client.since_s > HELLO_S:
                self.drop(client)

    def accept(self, now_s: float) -> None:
        """Take who is waiting at the door."""
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody more; or no descriptors left, and who waits waits on
                return
            self._admit(connection, now_s)

    def close(self) -> None:
        for client in list(self._clients.values()):
            self.drop(client)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept_all(self, mask: int, now_s: float) -> None:
        self.accept(now_s)

    def _admit(self, connection: socket.socket, now_s: float) -> None:
        try:
            peer = read_peer(connection)
        except OSError:
            connection.close()
            return
        of_user = sum(client.peer.uid == peer.uid for client in self._clients.values())
        if peer.uid != 0 and (len(self._clients) >= MAX_CLIENTS or of_user >= MAX_OF_ONE_USER):
            self.refused += 1
            connection.close()
            return
        client = Client(Link(connection, MAX_TO_AGENT_BYTES, UNSENT_BYTES), peer, now_s)
        fd = connection.fileno()
        self._clients[fd] = client
        self._selector.register(fd, selectors.EVENT_READ, lambda mask, now_s: self._serve(client, mask))

    def _serve(self, client: Client, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                client.link.flush()
                self._watch(client)
            frames = client.link.receive() if mask & selectors.EVENT_READ else []
        except LinkError:
            self.drop(client)
            return
        for frame in frames:
            if client.link.fileno() < 0:
                return  # let go of while it was served
            self._read(client, frame)

    def _read(self, client: Client, frame: bytes) -> None:
        try:
            message = TO_AGENT.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            client.malformed += 1
            self.malformed += 1
            if client.malformed > 10 or client.protocol == 0:
                self.drop(client)
            return
        self._take(client, message)

    def _send_frame(self, client: Client, frame: bytes) -> None:
        if client.link.fileno() < 0:
            return
        try:
            client.link.send_frame(frame)
        except LinkError:
            self.drop(client)
            return
        self._watch(client)
        if client.link.unsent_bytes and self._unsent_bytes() > ALL_UNSENT_BYTES:
            self.drop(client)

    def _unsent_bytes(self) -> int:
        return sum(client.link.unsent_bytes for client in self._clients.values())

    def _watch(self, client: Client) -> None:
        """Wait for room in the socket only while something waits for it."""
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.link.unsent_bytes else 0)
        key = self._selector.get_key(client.link.fileno())
        if key.events != mask:
            self._selector.modify(client.link.fileno(), mask, key.data)


def listen(path: Path) -> socket.socket:
    """A listening socket that everybody may connect to, in the place of one that nobody listens at any more.

    Whoever calls holds the lock that makes them the only agent. Raises OSError.
    """
    make_folders(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    beside = path.with_name(".new")  # no longer than the path, whose length has a limit
    try:
        beside.unlink(missing_ok=True)
        listener.bind(os.fspath(beside))
        beside.chmod(0o666)  # who is there is asked of the kernel, and what they may depends on that
        listener.setblocking(False)
        listener.listen(socket.SOMAXCONN)
        beside.replace(path)  # Whoever finds it may connect at once.
    except OSError:
        listener.close()
        raise
    return listener
