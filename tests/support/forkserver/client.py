"""Starts Pythons by forking a process that has imported torch and guardrun already, where that makes no difference.

    ForkingPopen(["/…/bin/guardrun", "--nproc-per-node=2", "train.py"], env=…, cwd=…, start_new_session=True)

is a `subprocess.Popen` whose process shows the same command line, environment, session, descriptors and stack as if it
had been executed; it is this process's child. What a fork cannot stand in for (other interpreters, flags that change
the interpreter, a variable that libraries read when they are loaded) is executed as ever, and so is everything while
`cold` is set (mark `cold`, or TEST_COLD=1).
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import leaks
from tests.support.forkserver.program import is_alike, parse_command
from tests.support.forkserver.server import Started, current_umask

SERVER = Path(__file__).with_name("server.py")
NAMESPACES = ("uts", "net", "mnt")


class Server:
    """The process that forks, one for each test process; started when it is first needed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = server_environment()
        self._connection = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        leaks.keep(self._process.pid, ours.fileno())
        atexit.register(self.close)

    def fork(self, asked: dict[str, Any], descriptors: list[int]) -> int:
        """The pid of a new child of this process."""
        socket.send_fds(self._connection, [json.dumps(asked).encode()], descriptors)
        answer = self._connection.recv(64)
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return int(answer)

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


_servers: dict[int, Server] = {}
"""By this process's pid: a fork of a test process has none."""

cold = bool(os.environ.get("TEST_COLD"))
"""Execute everything."""


def server_environment() -> dict[str, str]:
    """What the server is started with: nothing that steers a run."""
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "TZ", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def get_server() -> Server:
    """This process's."""
    pid = os.getpid()
    if pid not in _servers:
        _servers[pid] = Server()
    return _servers[pid]


class ForkingPopen(subprocess.Popen[Any]):
    """A Popen whose process is forked where that makes no difference."""

    def __init__(self, args: Any, *, namespaces_of: int = 0, forks: bool = True, **options: Any) -> None:
        """namespaces_of: a process whose network, hostname and mounts it is to have. forks: so are its children."""
        self._namespaces_of = namespaces_of
        self._forks = forks
        super().__init__(args, **options)

    def _execute_child(self, *arguments: Any) -> None:
        if not self._fork(Started(*arguments)):
            super()._execute_child(*arguments)  # type: ignore[misc]

    def _fork(self, started: Started) -> bool:
        environment = dict(os.environ) if started.env is None else dict(started.env)
        if cold or not started.is_plain() or started.pass_fds:
            return False
        if parse_command(started.args, environment) is None or not is_alike(environment, server_environment()):
            return False
        descriptors = started.descriptors()
        asked = {
            "command": [os.fspath(word) for word in started.args],
            "environment": environment,
            "cwd": os.path.abspath(started.cwd or os.getcwd()),
            "umask": current_umask(),
            "is_new_session": bool(started.start_new_session),
            "descriptors": list(descriptors),
            "namespaces": NAMESPACES if self._namespaces_of else (),
            "namespaces_of": self._namespaces_of,
            "forks": self._forks,
        }
        self.pid = get_server().fork(asked, list(descriptors.values()))
        self._child_created = True
        started.close_child_ends(self)
        return True
