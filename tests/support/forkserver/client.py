"""Starts Pythons by forking a process that has imported torch and guardrun already, where that makes no difference.

`install` puts it below every `subprocess.Popen` of this process: the new process shows the same command line,
environment, session, descriptors and stack as if it had been executed, and is this process's child. What a fork cannot
stand in for (other interpreters, flags that change the interpreter, a variable that libraries read when they are
loaded) is executed as ever, and so is everything while `cold` is set (mark `cold`, or TEST_COLD=1).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from execnet.gateway_io import popen_bootstrapline

from tests.support import leaks
from tests.support.forkserver.program import GIVEN_SERVER, READ_AT_START, UNABLE, Program, is_alike, parse_command
from tests.support.forkserver.started import Started, current_umask

SERVER = Path(__file__).with_name("server.py")
LAUNCHERS = (
    "guardrun",
    "guardctl",
    "program.py",
    "seccomp.py",
    "outlet.py",
    "torch.distributed.run",
    "guardrun.supervisor.cli.guardctl",
)
"""Scripts and modules whose own children are forked, too."""

cold = bool(os.environ.get("TEST_COLD"))
"""Execute everything."""

UNABLE_WORDS = (
    "tests: this kernel lets no process show another command line (CONFIG_CHECKPOINT_RESTORE), or has no clone3: "
    "every process is executed, which takes three times as long"
)

_read_at_start = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START)}
"""As it was before any test: a server that one of them starts serves those that come after it."""
_is_unable = False
_execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_namespaces_of = 0


def install() -> None:
    """From now on, for the whole process."""

    def execute_child(popen: subprocess.Popen[Any], *arguments: Any) -> None:
        if not _fork(popen, Started(*arguments)):
            _execute(popen, *arguments)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    if given := os.environ.pop(GIVEN_SERVER, ""):
        fd, pid = (int(word) for word in given.split())
        _servers[os.getpid()] = Server(socket.socket(fileno=fd), GivenProcess(pid))


def install_for_workers() -> None:
    """From now on, each worker of pytest-xdist that this process starts has a server, a fork of one that is made once.

    Each would import for 3 s what its server has, and is a fork itself, since it imports torch for the tests of what
    imports torch; what is tested, and the tests, it imports from their files.
    """

    def execute_child(popen: subprocess.Popen[Any], *arguments: Any) -> None:
        started = Started(*arguments)
        is_worker = isinstance(started.args, list) and started.args[-1] == popen_bootstrapline
        is_able = is_worker and started.is_plain() and _parse(started.args, dict(os.environ)) is not None
        if not is_able or not _ask(popen, started, dict(os.environ), True, True):
            _execute(popen, *arguments)

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def can_fork(command: Sequence[str], environment: dict[str, str]) -> bool:
    """Say whether a fork would do for a command line, and is what Popen makes of it here: not in a benchmark."""
    return subprocess.Popen._execute_child is not _execute and _parse(command, environment) is not None  # type: ignore[attr-defined]


@contextmanager
def executed() -> Iterator[None]:
    """What is started meanwhile is executed, as for a test with the mark `cold`."""
    global cold
    before, cold = cold, True
    try:
        yield
    finally:
        cold = before


@contextmanager
def forked_by(server: Server) -> Iterator[None]:
    """What is started meanwhile, and can be forked, is forked by this server, not by this process's own."""
    pid = os.getpid()
    before = _servers.get(pid)
    _servers[pid] = server
    try:
        yield
    finally:
        if before is None:
            del _servers[pid]
        else:
            _servers[pid] = before


@contextmanager
def namespaces_of(pid: int) -> Iterator[None]:
    """What is forked meanwhile has that process's network, hostname and mounts."""
    global _namespaces_of
    before, _namespaces_of = _namespaces_of, pid
    try:
        yield
    finally:
        _namespaces_of = before


class GivenProcess:
    """A child that this process was executed with, as subprocess shows one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Its exit status, 0 where somebody else has taken that, None while it lives."""
        if self._returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                self._returncode = 0
            else:
                self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Server:
    """The process that forks, one for each test process; started when it is first needed."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | GivenProcess) -> None:
        """process: a child of this one."""
        self._connection, self._process = connection, process
        self._lock = threading.Lock()
        connection.set_inheritable(False)
        leaks.keep(process.pid, connection.fileno())
        atexit.register(self.close)

    @classmethod
    def start(cls, program: Path | None = None, more: Mapping[str, str] | None = None) -> Server:
        """One that imports everything itself. program: None: SERVER. more: variables beside the usual ones."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, str(program or SERVER), str(theirs.fileno())],
                env={**server_environment(), **(more or {})},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return cls(ours, process)

    def fork(self, asked: dict[str, Any], descriptors: list[int]) -> int:
        """The pid of a new child of this process."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(asked).encode()], descriptors)
            answer = self._connection.recv(64)
        if not answer:
            raise RuntimeError(f"the fork server ended with {self._process.wait()}")
        return int(answer)

    @property
    def is_alive(self) -> bool:
        """Tests of what ends all children end this one, too."""
        return self._process.poll() is None

    def close(self) -> None:
        self._connection.close()
        self._process.wait()


_starting = threading.Lock()
_servers: dict[int, Server] = {}
"""By this process's pid: a fork of a test process has none."""


def server_environment() -> dict[str, str]:
    """What the server is started with: what is read once, and nothing that steers a run."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    environment |= _read_at_start
    environment.pop("PYTHONPATH", None)
    return environment | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def get_server() -> Server:
    """This process's."""
    pid = os.getpid()
    with _starting:
        server = _servers.get(pid)
        if server is not None and not server.is_alive:
            server.close()
        if server is None or not server.is_alive:
            server = _servers[pid] = Server.start()
        return server


def _parse(command: Sequence[str], environment: dict[str, str]) -> Program | None:
    if cold or _is_unable or not is_alike(environment, server_environment()):
        return None
    return parse_command(command, environment)


def _fork(popen: subprocess.Popen[Any], started: Started) -> bool:
    """Have a process forked for a Popen; False where it is to be executed."""
    environment = dict(os.environ) if started.env is None else dict(started.env)
    if not started.is_plain() or started.pass_fds or not all(isinstance(part, str) for part in environment.values()):
        return False
    program = _parse(started.args, environment)
    if program is None:
        return False
    return _ask(popen, started, environment, os.path.basename(program.target) in LAUNCHERS)


def _ask(
    popen: subprocess.Popen[Any], started: Started, environment: dict[str, str], forks: bool, has_server: bool = False
) -> bool:
    """Have the server start it. forks: its children, too. has_server: it has a server of its own."""
    global _is_unable
    descriptors = started.descriptors()
    asked = {
        "command": [os.fspath(word) for word in started.args],
        "environment": environment,
        "cwd": os.path.abspath(started.cwd or os.getcwd()),
        "umask": current_umask(),
        "is_new_session": bool(started.start_new_session),
        "descriptors": list(descriptors),
        "namespaces_of": _namespaces_of,
        "forks": forks,
        "has_server": has_server,
    }
    pid = get_server().fork(asked, list(descriptors.values()))
    if pid == UNABLE:
        _is_unable = True
        assert sys.__stderr__ is not None
        sys.__stderr__.write(f"\n{UNABLE_WORDS}\n")
        return False
    popen.pid = pid
    popen._child_created = True  # type: ignore[attr-defined]
    started.close_child_ends(popen)
    return True
