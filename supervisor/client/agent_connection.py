"""One end of a connection between the agent and those who ask it: frames in and out, never waiting."""

from __future__ import annotations

import socket

from guardrun.supervisor.base.framing import Unpacker
from guardrun.supervisor.wire.agent_messages import FromAgent, ToAgent, pack

_READ_BYTES = 1 << 16
READS_A_TURN = 16


class LinkError(Exception):
    """The connection is of no more use; says why."""


class Link:
    """A connected, non-blocking stream socket, which it closes."""

    def __init__(self, connection: socket.socket, limit_bytes: int, unsent_limit_bytes: int) -> None:
        """limit_bytes: of one frame that comes in. unsent_limit_bytes: what may wait for a peer that does not read."""
        connection.setblocking(False)
        self._socket = connection
        self._unpacker = Unpacker(limit_bytes)
        self._unsent = bytearray()
        self._unsent_limit = unsent_limit_bytes
        self.received_bytes = 0
        """In all."""

    def fileno(self) -> int:
        """The socket's; -1 once closed."""
        return self._socket.fileno()

    @property
    def unsent_bytes(self) -> int:
        """What waits for the socket to take more."""
        return len(self._unsent)

    def receive(self, reads: int = READS_A_TURN) -> list[bytes]:
        """The frames that have arrived. Raises LinkError at the end of the connection, too.

        reads: of 64 KiB at most, each.
        """
        frames: list[bytes] = []
        for _ in range(reads):
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                raise LinkError(f"{error.strerror}") from None
            if not data:
                if frames:
                    return frames  # the end is still there to be read the next time
                raise LinkError("it has closed the connection")
            self.received_bytes += len(data)
            try:
                frames += self._unpacker.feed(data)
            except ValueError as error:
                raise LinkError(str(error)) from None
        return frames

    def send(self, message: ToAgent | FromAgent) -> None:
        """Send a message, or keep it for later. Raises LinkError as `send_frame` does."""
        self.send_frame(pack(message))

    def send_frame(self, frame: bytes) -> None:
        """Send, or keep for later. Raises LinkError where the peer has left too much unread, or is gone."""
        if len(self._unsent) + len(frame) > self._unsent_limit:
            raise LinkError(f"it has left {len(self._unsent)} bytes unread")
        self._unsent += frame
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes now. Raises LinkError."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise LinkError(f"{error.strerror}") from None
            del self._unsent[:sent]

    def close(self) -> None:
        """Close at once; what is unsent is lost."""
        self._socket.close()
