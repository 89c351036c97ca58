"""torch's worker server inside a rank: one question over a Unix socket, and whether it may be asked.

The server is threads of the rank in C++, and answers whatever holds the GIL. Whoever connects must not harm the rank
(hooks/patches/flight_recorder.py): never where the script has closed the server's descriptor, or has none left.
"""

from __future__ import annotations

import os
import re
import socket
import time

from guardrun.supervisor.collect.host.procfs import parse_files_limit

MAX_BYTES = 8 * 1024 * 1024
"""2000 entries of the flight recorder, torch's default, are 1.2 MB."""
MAX_HEAD_BYTES = 64 * 1024
SPARE_DESCRIPTORS = 8


def find_obstacle(pid: int, fd: int, inode: int) -> str:
    """Why nobody may connect to a worker server now; empty where one may. The server ends the rank otherwise."""
    closed = "the script has closed the flight recorder's socket"
    try:
        if os.readlink(f"/proc/{pid}/fd/{fd}") != f"socket:[{inode}]":
            return closed
        with open(f"/proc/{pid}/limits", encoding="ascii", errors="replace") as file:
            limit = parse_files_limit(file.read())
        if limit is not None and len(os.listdir(f"/proc/{pid}/fd")) + SPARE_DESCRIPTORS > limit:
            return "the rank has no descriptor left with which its flight recorder could answer"
    except FileNotFoundError:
        return closed
    except OSError as error:
        return f"the flight recorder's socket could not be looked at: {error.strerror}"
    return ""


def request(path: str, method: str, target: str, deadline: float, max_bytes: int = MAX_BYTES) -> bytes:
    """One HTTP request over a Unix socket; answers the body. deadline is time.monotonic()'s.

    Raises OSError (TimeoutError where the deadline has passed), ValueError for an answer that is none, or too long.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _wait_until(connection, deadline)
        connection.connect(path)
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(head.encode())
        data = bytearray()
        body_at = size = -1
        while size < 0 or len(data) < body_at + size:
            _wait_until(connection, deadline)
            part = connection.recv(1 << 18)
            if not part:
                break
            data += part
            if size < 0:
                body_at, size = _read_head(data, max_bytes)
    if size < 0 or len(data) < body_at + size:
        raise ValueError("its answer ended early")
    return bytes(data[body_at : body_at + size])


def _wait_until(connection: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _read_head(data: bytearray, max_bytes: int) -> tuple[int, int]:
    """Where the body begins, and how long it is; -1, -1 while the head is incomplete. Raises ValueError."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        if len(data) > MAX_HEAD_BYTES:
            raise ValueError("its answer is no HTTP")
        return -1, -1
    head = data[:end].decode("latin-1")
    status = re.match(r"HTTP/1\.[01] (\d{3})", head)
    length = re.search(r"^content-length:\s*(\d{1,15})\s*$", head, re.IGNORECASE | re.MULTILINE)
    if status is None or length is None:
        raise ValueError("its answer is no HTTP, or doesn't say how long it is")
    if status[1] != "200":
        raise ValueError(f"it answers with status {status[1]}")
    if int(length[1]) > max_bytes:
        raise ValueError(too_long(int(length[1]), max_bytes))
    return end + 4, int(length[1])


def too_long(size_bytes: int, max_bytes: int) -> str:
    """Why a dump is not read, as a clause."""
    return f"its dump is {size_bytes >> 20} MB long, and at most {max_bytes >> 20} MB are read"
