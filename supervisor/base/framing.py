"""Frames on a stream of bytes: a length of four bytes, then as many. Whoever reads them says how long one may be."""

from __future__ import annotations

import struct

LENGTH = struct.Struct("!I")


class OversizeError(ValueError):
    """A frame is larger than its reader takes: the connection is of no more use."""


def frame(body: bytes) -> bytes:
    """A body with its length before it."""
    return LENGTH.pack(len(body)) + body


class Unpacker:
    """Puts frames together from whatever pieces arrive."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that are whole now. Raises OversizeError."""
        self._buffer += data
        bodies = []
        while len(self._buffer) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer)
            if size > self._limit:
                raise OversizeError(f"a frame of {size} bytes; at most {self._limit} are taken")
            end = LENGTH.size + size
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[LENGTH.size : end]))
            del self._buffer[:end]
        return bodies
