"""One warm process (hooks/warm/warm_process.py has its side, and the messages), and processes that it has forked."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

WARM_VARIABLE = "GUARDRUN_WARM"
MAX_ANSWER_BYTES = 1 << 20
FORK_S = 2.0
"""How long the fork of an attempt's ranks may take; then they are started as ever."""
BEGIN_S = 2.0
"""Likewise, until a forked process is a rank."""
END_S = 1.0


class WarmError(Exception):
    """No rank comes of it: why."""


class ForkedProcess:
    """A child of this process that another one has forked, as subprocess shows one."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self.pid, self.args = pid, list(args)
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None

    def poll(self) -> int | None:
        """Its exit code once it has ended: minus the signal's number where one killed it."""
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self._wait(0 if deadline_s is None else os.WNOHANG)) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, signum: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """By SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # Somebody else has taken its status: subprocess says 0 then.
                self.returncode = 0
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class WarmProcess:
    """Started at once; `read` says when it is of use."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], asked: Mapping[str, Any]) -> None:
        """command: a rank's. asked: what it is to import. To be made in the main thread. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    list(command),
                    env={**environment, WARM_VARIABLE: str(theirs.fileno())},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        self._waiting: list[tuple[ForkedProcess, socket.socket]] = []
        with suppress(OSError):
            ours.send(json.dumps(asked).encode())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has answered, or ended."""
        return self._socket.fileno()

    def read(self) -> dict[str, Any] | None:
        """Its answer, {} where it has ended, None where there is none yet."""
        if not _is_readable(self._socket, 0.0):
            return None
        try:
            answer = json.loads(self._socket.recv(MAX_ANSWER_BYTES) or b"{}")
        except (OSError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    def fork(self, count: int) -> None:
        """Have so many processes forked, which wait to be told what they are. Raises WarmError."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        pids: list[int] = []
        try:
            request = json.dumps({"launcher": os.getpid()}).encode()
            socket.send_fds(self._socket, [request], [theirs.fileno() for _, theirs in pairs])
            if not _is_readable(self._socket, FORK_S):
                raise WarmError("it does not answer")
            answer = self.read() or {}
            pids = answer.get("pids", [])
            if len(pids) != count:
                raise WarmError(str(answer.get("useless", "it has ended")))
        except OSError as error:
            raise WarmError(str(error)) from error
        finally:
            for ours, theirs in pairs:
                theirs.close()
                if len(pids) != count:
                    ours.close()
        self._waiting = [(ForkedProcess(pid, ()), ours) for pid, (ours, _) in zip(pids, pairs, strict=True)]

    def claim(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> ForkedProcess:
        """Have one of those that wait be a rank. Raises WarmError."""
        if not self._waiting:
            raise WarmError("nobody waits")
        process, channel = self._waiting.pop(0)
        process.args = list(command)
        umask = os.umask(0o077)
        os.umask(umask)
        message = {"command": list(command), "environment": dict(environment), "umask": umask}
        with channel:
            try:
                socket.send_fds(channel, [json.dumps(message).encode()], list(streams))
                text = channel.recv(MAX_ANSWER_BYTES) if _is_readable(channel, BEGIN_S) else b""
                answer = json.loads(text) if text else {"no": "it has ended"}
            except (OSError, ValueError) as error:
                answer = {"no": str(error)}
        if answer:
            process.kill()
            process.wait()
            raise WarmError(str(answer.get("no", answer)))
        return process

    def dismiss(self) -> None:
        """End those that wait and were not taken."""
        waiting, self._waiting = self._waiting, []
        for process, channel in waiting:
            channel.close()
            process.kill()
            process.wait()

    def close(self) -> None:
        """End it, and those that wait."""
        self.dismiss()
        self._socket.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)


def _is_readable(channel: socket.socket, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
