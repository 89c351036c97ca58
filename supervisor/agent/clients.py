"""Everybody who is connected to the agent: who they are, what they want to hear, and how much they may have waiting.

What has arrived is read in turns: root first, then a frame of one user after a frame of another, for TURN_S at most.
Each user but root has an allowance (`allowance`); who has used it up is not read until some of it is back, and loses
nothing. Who connects too often, or holds too many connections, is closed only after a second: to come back at once
gains nothing. Where many are refused the common door stays shut for a moment; root has one of its own.
A supervisor that is refused, or closed, goes on without an agent and tries again later.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from guardrun.supervisor.agent.client_allowance import Allowance
from guardrun.supervisor.base.framing import OversizeError
from guardrun.supervisor.base.own_files import make_folders
from guardrun.supervisor.client.agent_connection import Link, LinkError
from guardrun.supervisor.wire.agent_messages import (
    MAX_FROM_AGENT_BYTES,
    MAX_TO_AGENT_BYTES,
    TO_AGENT,
    FromAgent,
    Peer,
    ToAgent,
    pack,
    read_peer,
)

MAX_CLIENTS = 256
MAX_OF_ONE_USER = 64
"""But for root: nobody keeps the others out."""
UNSENT_BYTES = MAX_FROM_AGENT_BYTES + 4 * 1024 * 1024
"""One answer of the largest kind, and some time of facts; who reads no faster is let go."""
UNSENT_BYTES_OF_ONE_USER = UNSENT_BYTES + 4 * 1024 * 1024
"""But for root; over all connections."""
ALL_UNSENT_BYTES = 48 * 1024 * 1024
"""Of all together: the agent stays within the memory that its unit gives it."""
MAX_OPEN_ASKS = 2
"""Of one client, of those that a disk has to be asked for: nobody keeps it from the others."""
HELLO_S = 5.0
TURN_S = 0.005
"""Of reading what users have sent, before the loop looks at what else there is."""
FRAMES_OF_ROOT = 64
"""Of each of root's connections in a turn."""
PAUSE_S = 0.05
"""At least, once an allowance is used up."""
REFUSED_FOR_S = 1.0
REFUSED_A_TURN = 32
SHUT_S = 0.05
"""How long the common door stays shut once so many were refused at it: to refuse costs time, too."""
MAX_REFUSED = 1024
"""Connections kept unread until they are closed."""
MAX_REFUSED_OF_ONE_USER = 256
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
        self.frames: deque[bytes] = deque()
        """Arrived, and not yet its turn; nothing more is read until there are none."""
        self.is_listened_to = True
        """False while its user's allowance is used up."""


class _Refused(NamedTuple):
    connection: socket.socket
    uid: int
    until_s: float


class Clients:
    """Accepts, reads, sends and lets go; what a message asks for is its taker's work."""

    def __init__(
        self,
        listeners: list[socket.socket],
        selector: selectors.BaseSelector,
        handle_message: Callable[[Client, ToAgent], None],
    ) -> None:
        """listeners: everybody's door, then root's."""
        self._doors = listeners
        self._opens_s: float | None = None
        """When the common door opens again; None: it is open."""
        self._of_user: Counter[int] = Counter()
        """Connections."""
        self._kept_of: Counter[int] = Counter()
        self._selector = selector
        self._handle_message = handle_message
        self._clients: dict[int, Client] = {}
        self.refused = 0
        """Connections that there was no room for."""
        self.malformed = 0
        self.pauses = 0
        """How often a user's allowance was used up."""
        self._ready: dict[int, dict[int, Client]] = {}
        """By user and descriptor: those whose turn is to come; who was served last stands last."""
        self._allowances: dict[int, Allowance] = {}
        self._paused: dict[int, float] = {}
        """Until when, by user."""
        self._kept: deque[_Refused] = deque()
        """Refused, in the order in which they are to be closed."""
        for door in listeners:
            self._open(door)

    def __len__(self) -> int:
        return len(self._clients)

    def subscribers(self) -> list[Client]:
        """Those that want facts, findings, or both; each client says which."""
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
        """Close a connection; what has arrived and was not served is lost. May be called twice."""
        fd = client.link.fileno()
        if self._clients.pop(fd, None) is not None:
            self._of_user[client.peer.uid] -= 1
            self._set_mask(fd, 0, client)
            self._not_ready(client, fd)
            client.frames.clear()
            client.link.close()

    def drop_silent(self, now_s: float) -> None:
        """Let go of connections on which nobody has said Hello."""
        for client in list(self._clients.values()):
            if client.protocol == 0 and now_s - client.since_s > HELLO_S:
                self.drop(client)

    def _open(self, door: socket.socket) -> None:
        self._selector.register(door, selectors.EVENT_READ, lambda mask, now_s: self._accept_from(door, now_s))

    def _accept_from(self, door: socket.socket, now_s: float) -> None:
        before = self.refused
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = door.accept()
            except OSError:  # nobody more; or no descriptors left, and who waits waits on
                return
            self._admit(connection, now_s)
            if self.refused - before >= REFUSED_A_TURN:
                break
        if self.refused - before >= REFUSED_A_TURN and self._opens_s is None and door is self._doors[0]:
            self._selector.unregister(door)
            self._opens_s = now_s + SHUT_S

    def serve(self) -> None:
        """Do what has arrived: root's all, and of the users a frame each in turn, for as long as a turn takes."""
        now_s = time.monotonic()
        self._resume(now_s)
        for client in list(self._ready.get(0, {}).values()):
            for _ in range(FRAMES_OF_ROOT):
                if not self._serve_one(client):
                    break
        end_s = now_s + TURN_S
        while now_s < end_s and (users := [uid for uid in self._ready if uid != 0]):
            for uid in users:
                self._serve_user(uid)
                now_s = time.monotonic()
                if now_s >= end_s:
                    break

    def wait_s(self, now_s: float) -> float:
        """How long the loop may wait before it calls serve() again; 0: not at all."""
        if self._ready:
            return 0.0
        due = [
            *([] if self._opens_s is None else [self._opens_s]),
            *self._paused.values(),
            *([self._kept[0].until_s] if self._kept else []),
        ]
        return max(0.0, min(due) - now_s) if due else float("inf")

    def charge(self, client: Client, busy_s: float) -> None:
        """Have a user pay for work that is done elsewhere."""
        now_s = time.monotonic()
        self._allowance(client.peer.uid, now_s).busy_s.consume(busy_s, now_s)

    def close(self) -> None:
        """Close all connections, those that were refused too, and stop listening."""
        for client in list(self._clients.values()):
            self.drop(client)
        for kept in self._kept:
            kept.connection.close()
        self._kept.clear()
        for door in self._doors:
            if door in self._selector.get_map():
                self._selector.unregister(door)
            door.close()

    def _admit(self, connection: socket.socket, now_s: float) -> None:
        try:
            peer = read_peer(connection)
        except OSError:
            connection.close()
            return
        if peer.uid != 0 and not self._has_room(peer.uid, now_s):
            self._refuse(connection, peer.uid, now_s)
            return
        client = Client(Link(connection, MAX_TO_AGENT_BYTES, UNSENT_BYTES), peer, now_s)
        client.is_listened_to = peer.uid not in self._paused
        self._clients[connection.fileno()] = client
        self._of_user[peer.uid] += 1
        self._watch(client)
        if client.is_listened_to:
            self._is_ready(client)  # who connects has mostly said something already

    def _has_room(self, uid: int, now_s: float) -> bool:
        if len(self._clients) >= MAX_CLIENTS or self._of_user[uid] >= MAX_OF_ONE_USER:
            return False
        connections = self._allowance(uid, now_s).connections
        if connections.wait_s(now_s) > 0:
            return False
        connections.consume(1, now_s)
        return True

    def _refuse(self, connection: socket.socket, uid: int, now_s: float) -> None:
        self.refused += 1
        if len(self._kept) >= MAX_REFUSED or self._kept_of[uid] >= MAX_REFUSED_OF_ONE_USER:
            connection.close()
            return
        self._kept_of[uid] += 1
        self._kept.append(_Refused(connection, uid, now_s + REFUSED_FOR_S))

    def _allowance(self, uid: int, now_s: float) -> Allowance:
        found = self._allowances.get(uid)
        if found is None:
            connected = {client.peer.uid for client in self._clients.values()}
            for other in [u for u, one in self._allowances.items() if u not in connected and one.is_fresh(now_s)]:
                del self._allowances[other]
            found = self._allowances[uid] = Allowance(now_s)
        found.seen_s = now_s
        return found

    # Turns ----------------------------------------------------------------------------------------------------

    def _arrived(self, client: Client, mask: int) -> None:
        """A handler of the loop's: there is room to send, or something to be read, when it is this client's turn."""
        if client.link.fileno() < 0:
            return
        if mask & selectors.EVENT_WRITE:
            try:
                client.link.flush()
            except LinkError:
                self.drop(client)
                return
            self._watch(client)
        if mask & selectors.EVENT_READ and client.is_listened_to:
            self._is_ready(client)

    def _is_ready(self, client: Client) -> None:
        self._ready.setdefault(client.peer.uid, {})[client.link.fileno()] = client

    def _not_ready(self, client: Client, fd: int) -> None:
        of_user = self._ready.get(client.peer.uid, {})
        of_user.pop(fd, None)
        if not of_user:
            self._ready.pop(client.peer.uid, None)

    def _serve_user(self, uid: int) -> None:
        """One frame of the client of this user's whose turn it is."""
        began_s = time.monotonic()
        allowance = self._allowance(uid, began_s)
        if (wait_s := allowance.wait_s(began_s)) > 0:
            self._pause(uid, began_s + max(wait_s, PAUSE_S))
            return
        fd, client = next(iter(self._ready[uid].items()))
        del self._ready[uid][fd]
        self._ready[uid][fd] = client
        before_bytes = client.link.received_bytes
        before_cpu_s = time.thread_time()
        is_done = self._serve_one(client)
        now_s = time.monotonic()
        allowance.frames.consume(1 if is_done else 0, now_s)
        allowance.bytes.consume(client.link.received_bytes - before_bytes, now_s)
        allowance.busy_s.consume(time.thread_time() - before_cpu_s, now_s)

    def _serve_one(self, client: Client) -> bool:
        """One frame of one client; False where none is there."""
        fd = client.link.fileno()
        if fd < 0:
            return False
        if not client.frames:
            try:
                client.frames += client.link.receive(reads=1)
            except LinkError:
                self.drop(client)
                return False
        if not client.frames:
            self._not_ready(client, fd)
            return False
        self._read(client, client.frames.popleft())
        if client.link.fileno() >= 0:
            self._watch(client)
            if not client.frames:
                self._not_ready(client, fd)  # what else has come, the selector tells
        return True

    def _pause(self, uid: int, until_s: float) -> None:
        self.pauses += 1
        self._paused[uid] = until_s
        self._ready.pop(uid, None)
        self._listen_to(uid, False)

    def _resume(self, now_s: float) -> None:
        for uid in [uid for uid, until_s in self._paused.items() if now_s >= until_s]:
            del self._paused[uid]
            self._listen_to(uid, True)
        while self._kept and now_s >= self._kept[0].until_s:
            kept = self._kept.popleft()
            kept.connection.close()
            self._kept_of[kept.uid] -= 1
        if self._opens_s is not None and now_s >= self._opens_s:
            self._opens_s = None
            self._open(self._doors[0])

    def _listen_to(self, uid: int, is_listened_to: bool) -> None:
        for client in [one for one in self._clients.values() if one.peer.uid == uid]:
            client.is_listened_to = is_listened_to
            self._watch(client)
            if is_listened_to and client.frames:
                self._is_ready(client)

    def _read(self, client: Client, frame: bytes) -> None:
        try:
            message = TO_AGENT.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            client.malformed += 1
            self.malformed += 1
            if client.malformed > 10 or client.protocol == 0:
                self.drop(client)
            return
        self._handle_message(client, message)

    def _send_frame(self, client: Client, frame: bytes) -> None:
        if client.link.fileno() < 0:
            return
        try:
            client.link.send_frame(frame)
        except LinkError:
            self.drop(client)
            return
        self._watch(client)
        if client.link.unsent_bytes and self._has_left_too_much(client.peer.uid):
            self.drop(client)

    def _has_left_too_much(self, uid: int) -> bool:
        """Whether too much waits for this user's clients to read it, or for all."""
        unsent = [(client.peer.uid, client.link.unsent_bytes) for client in self._clients.values()]
        of_user = sum(size for owner, size in unsent if owner == uid)
        is_users = uid != 0 and of_user > UNSENT_BYTES_OF_ONE_USER
        return is_users or sum(size for _, size in unsent) > ALL_UNSENT_BYTES

    def _watch(self, client: Client) -> None:
        """Wait for room in the socket only while something waits for it, and for words while they would be read."""
        is_wanted = client.is_listened_to and not client.frames
        write = selectors.EVENT_WRITE if client.link.unsent_bytes else 0
        self._set_mask(client.link.fileno(), (selectors.EVENT_READ if is_wanted else 0) | write, client)

    def _set_mask(self, fd: int, mask: int, client: Client) -> None:
        key = self._selector.get_map().get(fd)
        if key is None:
            if mask:
                self._selector.register(fd, mask, lambda mask, now_s: self._arrived(client, mask))
        elif not mask:
            self._selector.unregister(fd)
        elif key.events != mask:
            self._selector.modify(fd, mask, key.data)


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket, in the place of one that nobody listens at any more. mode: who may connect.

    Whoever calls holds the lock that makes them the only agent. Raises OSError.
    """
    make_folders(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    beside = path.with_name(".new")  # no longer than the path, whose length has a limit
    try:
        beside.unlink(missing_ok=True)
        listener.bind(os.fspath(beside))
        beside.chmod(mode)  # who is there is asked of the kernel, and what they may depends on that
        listener.setblocking(False)
        listener.listen(socket.SOMAXCONN)
        beside.replace(path)  # Whoever finds it may connect at once.
    except OSError:
        listener.close()
        raise
    return listener
