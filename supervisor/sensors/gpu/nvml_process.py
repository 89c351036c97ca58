"""The sensor's hand on the process in which NVML lives: starting it, talking to it, letting go of it.

Nothing here waits for that process to end: one that is stuck in the driver cannot be ended by anybody, not even by
SIGKILL, before its call returns.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import guardrun
from guardrun.supervisor.base.framing import Unpacker
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.sensors.gpu.nvml_wire import MAX_FRAME_BYTES, ToProcess, ToSensor, encode

_BOOT = (
    "import sys; sys.path[:] = sys.argv[5:]; "
    "from guardrun.supervisor.sensors.gpu.nvml_child import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)
_TITLE = "guardrund-nvml"
"""First argument, for whoever lists processes."""
_CHILD_FD = 3


class EndedError(Exception):
    """The process is gone, or what it said makes no sense."""


class NvmlProcess:
    """One such process, from its start to when it is let go of.

    The kernel ends it with the thread that started it (PR_SET_PDEATHSIG), and it ends by itself when the socket closes.
    """

    def __init__(self, root: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self.pid = _spawn(theirs.fileno(), root, environment)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._status: int | None = None
        self._sock = ours
        self._unframer = Unpacker(MAX_FRAME_BYTES)
        self._decoder = msgspec.msgpack.Decoder(known_type(ToSensor))
        self._frames: list[ToSensor] = []

    def fileno(self) -> int:
        """Readable when the process has said something, or is gone."""
        return self._sock.fileno()

    def send(self, frame: ToProcess) -> None:
        """Send one frame. Raises EndedError."""
        try:
            self._sock.sendall(encode(frame))
        except OSError as error:
            # Also where its buffer is full: it has not listened for long.
            raise EndedError(f"cannot be told anything: {error}") from None

    def hear(self, deadline_s: float) -> ToSensor | None:
        """The next frame it has said; None when none has come by deadline_s. Raises EndedError."""
        while not self._frames:
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            if not poller.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                return None
            self._receive()
        return self._frames.pop(0)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(1 << 18)
            self._frames += [self._decoder.decode(body) for body in self._unframer.feed(data)]
        except BlockingIOError:
            return
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise EndedError(f"{type(error).__name__}: {error}") from None
        if not data:
            raise EndedError("it has closed its end")

    def reap(self) -> int | None:
        """Its wait status once it has ended; None before. Never blocks."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._status = 0  # Somebody else has reaped it.
            else:
                self._status = status if pid else None
        return self._status

    def let_go(self) -> None:
        """Have it killed, and wait for nothing: who calls goes on with `reap` from time to time."""
        self._sock.close()
        if self.reap() is None:
            os.kill(self.pid, signal.SIGKILL)


def how_it_ended(status: int) -> str:
    """`killed by SIGSEGV`, `exit code 1`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _spawn(descriptor: int, root: str, environment: Mapping[str, str]) -> int:
    """Start the process with descriptor as its number 3; no other descriptor of ours is left open in it.

    It gets our module path as arguments instead of looking for one: no `site`, no user's folders or sitecustomize.
    """
    package = str(Path(guardrun.__file__).parent.parent)
    arguments = [_TITLE, str(_CHILD_FD), str(os.getpid()), root, package, *(path for path in sys.path if path)]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in range(3)]
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
            # One arena: its few threads allocate little, and each arena costs memory.
            {**environment, "MALLOC_ARENA_MAX": "1"},
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, descriptor, _CHILD_FD)],
            setpgroup=0,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        )
    finally:
        os.close(null)
