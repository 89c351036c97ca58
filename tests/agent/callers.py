"""Those who talk to an agent under test: by the project's client, byte by byte, and as another user."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from pathlib import Path

from guardrun.supervisor.base.framing import Unpacker
from guardrun.supervisor.client.agent_client import AgentClient
from guardrun.supervisor.wire.agent_messages import (
    FROM_AGENT,
    MAX_FROM_AGENT_BYTES,
    PROTOCOL,
    FromAgent,
    Hello,
    ToAgent,
    pack,
)


class Raw:
    """A client that says whatever it likes."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._unpacker = Unpacker(MAX_FROM_AGENT_BYTES)
        self._frames: list[bytes] = []

    def say(self, message: ToAgent) -> None:
        self.send(pack(message))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self) -> FromAgent:
        """The next message. Raises EOFError at the end."""
        while not self._frames:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames += self._unpacker.feed(data)
        return FROM_AGENT.decode(self._frames.pop(0))

    def close(self) -> None:
        self._socket.close()


def hello(protocol: int = PROTOCOL, oldest: int = 1) -> Hello:
    return Hello(protocol=protocol, oldest=oldest, version="9.9", program="test")


def read_until(client: AgentClient, kind: type, timeout_s: float = 60.0) -> list[object]:
    """Poll the client's descriptor, as a supervisor does, until something of a kind has come."""
    heard: list[object] = []
    poller = select.poll()
    poller.register(client.fileno(), select.POLLIN)
    deadline_s = time.monotonic() + timeout_s
    while not any(isinstance(news, kind) for news in heard):
        assert time.monotonic() < deadline_s, f"no {kind.__name__} in {heard}; {client.trouble}"
        poller.poll(200)
        heard += client.read()
    return heard


def as_nobody(code: str, path: Path) -> str:
    """Run Python as user nobody; its output."""
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "from pathlib import Path; path = Path(sys.argv[1])\n" + code
    )
    preload = "from guardrun.supervisor.client.agent_client import ask, AgentClient, RefusedError\n"
    preload += "import guardrun.supervisor.agent.command as command, guardrun.supervisor.wire.agent_messages as wire\n"
    preload += "import pwd, socket, select, time\n"  # now: a user may not be let through to the interpreter's library
    done = subprocess.run(
        [sys.executable, "-c", preload + program, str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
