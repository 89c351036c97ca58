"""journald's native protocol: log lines with fields, for `journalctl GUARDRUN_CAUSE=gpu_xid`.

systemd.io/JOURNAL_NATIVE_PROTOCOL: one datagram an entry, `FIELD=value` lines; a value that holds a newline is sent as
the field's name, a newline, its length (64 bits, little-endian), the value and a newline.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
STREAM_VARIABLE = "JOURNAL_STREAM"
"""`DEVICE:INODE` of the stream that systemd has connected a service's output with."""

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""structlog's levels as syslog(3) numbers them."""

MAX_VALUE = 8192
_NO_FIELD = re.compile(r"[^A-Z0-9_]")


def is_journal(stream_fd: int, environ: Mapping[str, str]) -> bool:
    """Whether a descriptor leads to journald, as systemd.exec(5) says one is to find out."""
    try:
        stat = os.fstat(stream_fd)
    except OSError:
        return False
    return environ.get(STREAM_VARIABLE, "") == f"{stat.st_dev}:{stat.st_ino}"


class Journal:
    """Sends entries; never blocks: what journald can't take now is dropped, and counted."""

    def __init__(self, identifier: str, address: str = SOCKET) -> None:
        self._identifier = identifier
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.dropped = 0

    def send(self, message: str, level: str, fields: Mapping[str, str]) -> None:
        """One entry. fields: by the names that they shall have in the journal."""
        all_fields = {
            "MESSAGE": message,
            "PRIORITY": str(PRIORITIES.get(level, 6)),
            "SYSLOG_IDENTIFIER": self._identifier,
            **fields,
        }
        try:
            self._socket.sendto(
                b"".join(encode_field(name, value) for name, value in all_fields.items()), self._address
            )
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        """Close the socket; `send` must not be called after it."""
        self._socket.close()


def field_name(name: str, prefix: str = "GUARDRUN_") -> str:
    """A field's name as journald takes it: upper case, digits, underscores; at most 64 characters."""
    return (prefix + _NO_FIELD.sub("_", name.upper()))[:64]


def encode_field(name: str, value: str) -> bytes:
    """One field; its value is cut after MAX_VALUE characters."""
    data = value[:MAX_VALUE].encode("utf-8", "replace")
    if b"\n" in data:
        return name.encode("ascii") + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode("ascii") + b"=" + data + b"\n"
