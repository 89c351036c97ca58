"""Do two nodes reach each other? A listener for the time of a check, and whoever connects to it.

It answers those that bring the token which the head has handed out for this check, with the node's name and what they
sent; everybody else is hung up on without a word.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import NamedTuple

from guardrun.supervisor.wire.listening_addresses import EVERYWHERE, Listen, open_listeners

TOKEN_BYTES = 16
CALL_BYTES = TOKEN_BYTES + 8
"""The token, and what is to come back."""
ECHOES = 3
"""The quickest counts: scheduling only adds to the others."""
CONNECT_S = 1.6
"""A first packet that gets lost is sent again after a second (RFC 6298)."""
MOST_CALLERS = 512
BACKLOG = 128
IDLE_S = 5.0
MAX_NAME_BYTES = 255


class Met(NamedTuple):
    """What came of a call."""

    took_s: float = 0.0
    error: str = ""


class Echo:
    """The listener, served by a thread of its own until it is closed, or for keep_s."""

    def __init__(self, node: str, token: bytes, keep_s: float, listen: Listen = EVERYWHERE) -> None:
        """Raises OSError."""
        self._answer = node.encode()[:MAX_NAME_BYTES]
        self._token = token
        self._ends_s = time.monotonic() + keep_s
        self._servers = open_listeners(listen, 0, BACKLOG)
        self.port: int = self._servers[0].getsockname()[1]
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="guardrun-echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; waits for the thread."""
        os.close(self._ended)
        self._thread.join()
        os.close(self._end)

    def _serve(self) -> None:
        callers: dict[socket.socket, tuple[bytes, float]] = {}
        with selectors.DefaultSelector() as selector, ExitStack() as servers:
            selector.register(self._end, selectors.EVENT_READ)
            for server in self._servers:
                selector.register(servers.enter_context(server), selectors.EVENT_READ)
            while time.monotonic() < self._ends_s:
                now_s = time.monotonic()
                for key, _ in selector.select(1.0):
                    if key.fileobj == self._end:
                        self._ends_s = 0.0
                    elif not isinstance(key.fileobj, socket.socket):
                        continue
                    elif key.fileobj in self._servers:
                        _accept(key.fileobj, selector, callers)
                    elif not self._hear(key.fileobj, callers):
                        _drop(key.fileobj, selector, callers)
                for caller in [one for one, (_, since_s) in callers.items() if now_s - since_s > IDLE_S]:
                    _drop(caller, selector, callers)
            for caller in list(callers):
                _drop(caller, selector, callers)

    def _hear(self, caller: socket.socket, callers: dict[socket.socket, tuple[bytes, float]]) -> bool:
        """False where the call is over."""
        try:
            data = caller.recv(CALL_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        known = callers[caller][0] + data
        if not data or known[:TOKEN_BYTES] != self._token[: len(known)]:
            return False
        if len(known) >= CALL_BYTES:
            call, known = known[:CALL_BYTES], known[CALL_BYTES:]
            try:
                caller.send(call[TOKEN_BYTES:] + bytes([len(self._answer)]) + self._answer)
            except OSError:
                return False
        callers[caller] = (known, time.monotonic())
        return True


def _accept(
    server: socket.socket, selector: selectors.BaseSelector, callers: dict[socket.socket, tuple[bytes, float]]
) -> None:
    with suppress(OSError):
        caller, _ = server.accept()
        if len(callers) >= MOST_CALLERS:
            caller.close()
            return
        caller.setblocking(False)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        callers[caller] = (b"", time.monotonic())
        selector.register(caller, selectors.EVENT_READ)


def _drop(
    caller: socket.socket, selector: selectors.BaseSelector, callers: dict[socket.socket, tuple[bytes, float]]
) -> None:
    selector.unregister(caller)
    del callers[caller]
    caller.close()


def call(node: str, address: str, port: int, token: bytes) -> Met:
    """Reach another node's listener by the name or address that its ranks' store would have."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return Met(error=f"its name {address} is not resolved: {error.strerror or error}")
    met = Met(error="no address")
    for family, kind, protocol, _, place in found[:4]:
        with socket.socket(family, kind, protocol) as caller:
            caller.settimeout(CONNECT_S)
            try:
                caller.connect(place)
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                met = _talk(caller, node, token)
            except TimeoutError:
                met = Met(error=f"no answer from {place[0]} within {CONNECT_S:g} s")
            except OSError as error:
                met = Met(error=f"{place[0]}: {error.strerror or error}")
        if not met.error:
            return met
    return met


def _talk(caller: socket.socket, node: str, token: bytes) -> Met:
    """Raises OSError."""
    best_s = float("inf")
    for _ in range(ECHOES):
        sent = os.urandom(CALL_BYTES - TOKEN_BYTES)
        began_s = time.monotonic()
        caller.sendall(token + sent)
        head = _receive(caller, len(sent) + 1)
        name = _receive(caller, head[-1])
        best_s = min(best_s, time.monotonic() - began_s)
        if head[:-1] != sent:
            return Met(error="something else answers there")
        if name != node.encode()[:MAX_NAME_BYTES]:
            return Met(error=f"{name.decode(errors='replace')} answers there: the name means another host here")
    return Met(took_s=best_s)


def _receive(caller: socket.socket, count: int) -> bytes:
    """Raises OSError; TimeoutError where it takes too long."""
    data = b""
    while len(data) < count:
        part = caller.recv(count - len(data))
        if not part:
            raise ConnectionError("something else answers there")
        data += part
    return data
