"""Hostile clients of one user against a node agent's socket.

    python flood_agent.py SOCKET CLIENTS SECONDS

CLIENTS connections at a time, each in turn one of KINDS; who is closed connects again at once. Prints a line when all
have connected once, and at the end how often each kind did.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time
from pathlib import Path

from guardrun.supervisor.wire.agent_messages import PROTOCOL, Ask, Hello, RegisterJob, ToAgent, pack

KINDS = ("registers", "asks", "long frames", "half a frame", "does not read", "reconnects")
_READ_BYTES = 1 << 16


def frames_of(kind: str, number: int) -> tuple[bytes, bytes]:
    """What one says first, and then without end."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    hello = Hello(protocol=PROTOCOL, oldest=1, version="flood")

    def register(size: int) -> bytes:
        return pack(
            RegisterJob(
                run_id="r" * size if size else "one",
                run_dir="/",
                launcher_pid=os.getpid(),
                launcher_start=int(stat[19]),
                token=f"t{number}",
            )
        )

    said: ToAgent = Ask(id=1, verb="facts")
    again = {
        "registers": register(0),
        "asks": pack(said) + pack(Ask(id=2, verb="history", arguments={"limit": 10_000})),
        "long frames": register(60_000),
        "half a frame": struct.pack("!I", 60_000) + b"x" * 30_000,
        "does not read": pack(said) * 8,
        "reconnects": pack(said),
    }[kind]
    return pack(hello), again


class Hostile:
    """One connection, and all that come after it."""

    def __init__(self, path: str, number: int, selector: selectors.BaseSelector) -> None:
        self.kind = KINDS[number % len(KINDS)]
        self.connections = 0
        self._path = path
        self._hello, self._again = frames_of(self.kind, number)
        self._selector = selector
        self._socket: socket.socket | None = None
        self._left = b""

    def connect(self) -> None:
        """Raises nothing: where the door is crowded, the next turn tries again."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return
        self.connections += 1
        self._socket, self._left = connection, self._hello + self._again
        self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def go_on(self, mask: int) -> None:
        """Send as much as goes, read unless it is of those who don't."""
        assert self._socket is not None
        try:
            if mask & selectors.EVENT_WRITE:
                self._left = self._left[self._socket.send(self._left) :]
            if mask & selectors.EVENT_READ and self.kind != "does not read" and not self._socket.recv(_READ_BYTES):
                self._close()
                return
        except BlockingIOError:
            return
        except OSError:
            self._close()
            return
        if not self._left:
            if self.kind == "reconnects":
                self._close()
            elif self.kind == "half a frame":
                self._selector.modify(self._socket, selectors.EVENT_READ, self)
            else:
                self._left = self._again

    def _close(self) -> None:
        assert self._socket is not None
        self._selector.unregister(self._socket)
        self._socket.close()
        self._socket = None


def main(path: str, clients: str, seconds: str) -> int:
    selector = selectors.DefaultSelector()
    crowd = [Hostile(path, number, selector) for number in range(int(clients))]
    end_s = time.monotonic() + float(seconds)
    is_told = False
    while time.monotonic() < end_s:
        for one in crowd:
            if not one.is_connected:
                one.connect()
        if not is_told and all(one.connections for one in crowd):
            is_told = True
            print("connected", flush=True)
        for key, mask in selector.select(0.1):
            key.data.go_on(mask)
    counts = {kind: sum(one.connections for one in crowd if one.kind == kind) for kind in KINDS}
    print(counts, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
