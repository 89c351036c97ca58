"""ZeroMQ's PUSH over a Unix socket, as ZMTP 3.0 (https://rfc.zeromq.org/spec/23/) has it on the wire.

Not libzmq: that ends its process by abort() when a descriptor of its own is closed under it, or when no descriptor or
thread is to be had. A script may do all that (`os.closerange`, a daemon, a full `ulimit -n`), and must not die of us.
Here every failure is an OSError, one descriptor is used, and no thread. Only the hooks' thread comes here: it may wait
a moment.
"""

from __future__ import annotations

import _socket
import os
from collections import deque
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Signature, version 3.0, mechanism, "not a server", filler: 64 bytes."""
READY = b"\x04\x1a" + b"\x05READY" + b"\x0bSocket-Type" + b"\x00\x00\x00\x04PUSH"
"""The NULL mechanism's handshake, as a short command frame."""

LONG = 255
"""Frames of more bytes than this state their size in eight bytes."""
RETRY_S = 0.1
GREETED_S = 0.05
"""A peer that lives answers a new connection within a millisecond; one that takes longer is looked after later."""
MAX_WAITING = 1000
MAX_WAITING_BYTES = 4 * 1024 * 1024
READ_BYTES = 4096


def frame(data: bytes) -> bytes:
    """One message of one part."""
    if len(data) <= LONG:
        return bytes((0, len(data))) + data
    return b"\x02" + len(data).to_bytes(8, "big") + data


class Push:
    """Connects, and connects again; keeps what could not be sent yet, within bounds."""

    def __init__(self, path: str) -> None:
        """path: the peer's socket, absolute. That nobody is there yet is no error."""
        self._path = path
        self._socket: Any = None
        self._identity = (0, 0)
        """Device and inode of our descriptor: the script may close it, and get its number for a file of its own."""
        self._retry_s = 0.0
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._sent = 0
        """Bytes of the first waiting one that are on their way."""
        self._heard = b""
        """The beginning of what the peer said: its greeting, and the header of its READY."""
        self._heard_bytes = 0

    def send(self, data: bytes) -> bool:
        """Send a message, now or as soon as somebody takes it; False where too many wait already."""
        self.pump()
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + len(data) > MAX_WAITING_BYTES:
            return False
        self._waiting.append(frame(data))
        self._waiting_bytes += len(self._waiting[-1])
        self.pump()
        return True

    def pump(self) -> None:
        """Send what can be sent without waiting."""
        try:
            if not self._is_ours():
                self._forget()
            if self._socket is None and not self._connect():
                return
            self._read()
            if self._is_greeted():
                self._send_waiting()
        except BlockingIOError:
            pass
        except OSError:
            self._lose()

    def close(self, linger_s: float) -> None:
        """Give what waits linger_s more, where somebody listens."""
        self._retry_s = 0.0
        self.pump()
        if self._waiting and self._is_ours():
            try:
                self._await_greeting(linger_s)
                self._socket.settimeout(linger_s)
                self._send_waiting()
            except OSError:  # A timeout too: nobody takes it.
                pass
        self._lose()

    def _send_waiting(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            self._sent += self._socket.send(memoryview(first)[self._sent :], _socket.MSG_NOSIGNAL)
            if self._sent == len(first):
                self._waiting_bytes -= len(self._waiting.popleft())
                self._sent = 0

    def _is_greeted(self) -> bool:
        """Say whether the peer is READY: libzmq ends a connection on which a message comes before that."""
        head = len(GREETING) + 2
        return len(self._heard) >= head and self._heard_bytes >= head + self._heard[head - 1]

    def _is_ours(self) -> bool:
        if self._socket is None:
            return False
        try:
            now = os.fstat(self._socket.fileno())
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self._identity

    def _connect(self) -> bool:
        """Connect, unless that was tried a moment ago. Raises OSError where nobody is there, or no descriptor is."""
        if monotonic() < self._retry_s:
            return False
        self._retry_s = monotonic() + RETRY_S
        new = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            new.settimeout(0)
            new.connect(self._path)
            # A new connection's buffer has room for this.
            if new.send(GREETING + READY, _socket.MSG_NOSIGNAL) != len(GREETING + READY):
                raise OSError("no room for a greeting")
            at = os.fstat(new.fileno())
        except OSError:
            new.close()
            raise
        self._socket, self._identity = new, (at.st_dev, at.st_ino)
        self._sent, self._heard, self._heard_bytes = 0, b"", 0
        try:
            self._await_greeting(GREETED_S)
        except TimeoutError:
            pass
        new.settimeout(0)
        return True

    def _await_greeting(self, timeout_s: float) -> None:
        """Raises TimeoutError, ConnectionError."""
        deadline_s = monotonic() + timeout_s
        while not self._is_greeted():
            # 0 would mean: don't wait.
            self._socket.settimeout(max(0.001, deadline_s - monotonic()))
            self._hear(self._socket.recv(READ_BYTES))

    def _read(self) -> None:
        """Pass over what the peer says. Raises ConnectionError where it is gone."""
        try:
            while True:
                self._hear(self._socket.recv(READ_BYTES))
        except BlockingIOError:
            pass

    def _hear(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("the peer has closed the connection")
        self._heard_bytes += len(data)
        if len(self._heard) < len(GREETING) + 2:
            self._heard += data

    def _lose(self) -> None:
        """The connection is over. What the peer had only a part of is sent again in whole to the next."""
        if self._is_ours():
            self._socket.close()
        self._forget()

    def _forget(self) -> None:
        """Let go without closing: the number may be a file of the script's by now."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None
        self._sent = 0
