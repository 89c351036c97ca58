"""The socket by which code goes to a rank's node, as both of its ends see it: who is at the other one, and frames.

Frames: four bytes of length, then JSON, either way, one each.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Any

from guardrun.supervisor.base.framing import LENGTH, frame

LIVE_SOCKET = "live"
"""In the run's socket folder."""
CREDENTIALS = struct.Struct("3i")
"""struct ucred: pid, uid, gid (man 7 unix)."""
MAX_ANSWER_BYTES = 4 << 20
SLOW_S = 5.0
"""Who says, or takes, nothing for so long is let go."""


def find_fault(folder: Path) -> str:
    """Why a folder is not this user's alone; empty: it is."""
    at = folder.lstat()
    if not stat.S_ISDIR(at.st_mode):
        return "is no folder"
    if at.st_uid != os.geteuid():
        return f"belongs to user {at.st_uid}"
    return "may be entered by others" if at.st_mode & 0o077 else ""


def who_may_not(peer: socket.socket) -> str:
    """Why whoever is at the other end is not spoken with; empty: it is this very user."""
    _, uid, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    if uid == os.geteuid():
        return ""
    return f"code is run for user {os.geteuid()} alone, whose run this is, and not for user {uid}"


def send(peer: socket.socket, what: dict[str, Any]) -> None:
    """Raises OSError; TimeoutError where nobody takes it."""
    data = json.dumps(what).encode()
    peer.settimeout(SLOW_S)
    peer.sendall(frame(data))


def receive(peer: socket.socket, limit: int, timeout_s: float | None = None) -> dict[str, Any]:
    """Raises OSError, or ValueError where it is none, or longer than limit (bytes)."""
    by_s = time.monotonic() + (SLOW_S if timeout_s is None else timeout_s)

    def read(count: int) -> bytes:
        data = b""
        while len(data) < count:
            left_s = by_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("nothing was said in time")
            peer.settimeout(left_s)
            part = peer.recv(min(count - len(data), 1 << 16))
            if not part:
                raise ValueError("it was not said to its end")
            data += part
        return data

    (length,) = LENGTH.unpack(read(LENGTH.size))
    if length > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    what = json.loads(read(length))
    if not isinstance(what, dict):
        raise ValueError("it is no object")
    return what
