"""One warm process (hooks/warm/warm_process.py has its side, and the messages), and processes that it has forked."""

from __future__ import annotations

import json
import math
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
FORK_S = 5.0
"""How long its answers are waited for: then ranks are started as ever."""
BEGIN_S = 5.0
"""Likewise, until forked processes are ranks."""
END_S = 1.0
ENDED, SILENT = "the warm process has ended", "it does not answer"


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
        self._asked: list[list[socket.socket]] = []
        """What has not been answered: sockets of processes that are to be forked; none: whether it is still of use."""
        self._waiting: list[tuple[ForkedProcess, socket.socket]] = []
        self._told: list[tuple[ForkedProcess, socket.socket]] = []
        self.checked_s = -math.inf
        """When it was last asked whether it is still of use, of those times when it was."""
        with suppress(OSError):
            ours.send(json.dumps(asked).encode())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when it has answered, or ended."""
        return self._socket.fileno()

    @property
    def is_busy(self) -> bool:
        """It has not answered yet."""
        return bool(self._asked)

    def waiting(self) -> list[int]:
        """Processes that it has forked, which wait to be told what they are."""
        return [process.pid for process, _ in self._waiting]

    def read(self) -> dict[str, Any] | None:
        """What it says by itself, {} where it has ended, None where it has said nothing, or has answered."""
        if not _is_readable(self._socket, 0.0):
            return None
        try:
            answer = json.loads(self._socket.recv(MAX_ANSWER_BYTES) or b"{}")
        except (OSError, ValueError):
            return {}
        if not isinstance(answer, dict):
            return {}
        return None if self._asked and self._is_answered(answer) else answer

    def _is_answered(self, answer: dict[str, Any]) -> bool:
        """Whether it is the answer that comes next."""
        ours, pids = self._asked[0], answer.get("pids")
        if ours and isinstance(pids, list) and len(pids) == len(ours):
            self._waiting += [(ForkedProcess(int(pid), ()), channel) for pid, channel in zip(pids, ours, strict=True)]
        elif ours or answer.get("same") is not True:
            return False
        del self._asked[0]
        return True

    def fork(self, count: int) -> None:
        """Ask for so many processes, which wait to be told what they are. Raises WarmError."""
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        try:
            request = json.dumps({"fork": os.getpid()}).encode()
            socket.send_fds(self._socket, [request], [theirs.fileno() for _, theirs in pairs])
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            raise WarmError(_describe(error)) from error
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._asked.append([ours for ours, _ in pairs])

    def check(self) -> None:
        """Ask whether what it has imported is still what is installed. Raises WarmError."""
        try:
            self._socket.send(b'{"check": true}')
        except OSError as error:
            raise WarmError(_describe(error)) from error
        self._asked.append([])
        self.checked_s = time.monotonic()

    def settle(self) -> None:
        """Wait until it has answered all. Raises WarmError."""
        deadline_s = time.monotonic() + FORK_S
        while self._asked:
            if not _is_readable(self._socket, max(0.0, deadline_s - time.monotonic())):
                raise WarmError(SILENT)
            answer = self.read()
            if answer is not None:
                raise WarmError(str(answer.get("useless", ENDED)))

    def claim(self, command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> ForkedProcess:
        """Have one of those that wait be a rank; `find_refused` says whether it is one. Raises WarmError."""
        if not self._waiting:
            raise WarmError("nobody waits")
        process, channel = self._waiting.pop(0)
        process.args = list(command)
        umask = os.umask(0o077)
        os.umask(umask)
        message = {"command": list(command), "environment": dict(environment), "umask": umask, **_read_signals()}
        try:
            socket.send_fds(channel, [json.dumps(message).encode()], list(streams))
        except OSError as error:
            self._end([(process, channel)])
            raise WarmError(f"a process that waited can't be reached ({error.strerror})") from error
        self._told.append((process, channel))
        return process

    def find_refused(self) -> dict[int, str]:
        """Per process that was told to be a rank, and is none within BEGIN_S: why. It is ended."""
        told, self._told = self._told, []
        deadline_s, found = time.monotonic() + BEGIN_S, {}
        for process, channel in told:
            try:
                is_there = _is_readable(channel, max(0.0, deadline_s - time.monotonic()))
                answer = json.loads(channel.recv(MAX_ANSWER_BYTES) or b"[]") if is_there else {"no": SILENT}
            except (OSError, ValueError) as error:
                answer = {"no": str(error)}
            if answer == {}:
                channel.close()
                continue
            found[process.pid] = str(answer["no"]) if isinstance(answer, dict) and "no" in answer else "it has ended"
            self._end([(process, channel)])
        return found

    def forget_told(self) -> None:
        """Of an earlier attempt, which did not come about."""
        told, self._told = self._told, []
        for _, channel in told:
            channel.close()

    def dismiss(self) -> None:
        """End those that wait."""
        waiting, self._waiting = self._waiting, []
        self._end(waiting)

    def _end(self, processes: list[tuple[ForkedProcess, socket.socket]]) -> None:
        for process, channel in processes:
            channel.close()
            process.kill()
        deadline_s = time.monotonic() + END_S
        for process, _ in processes:
            with suppress(subprocess.TimeoutExpired):  # in a dead file system: it never runs again
                process.wait(max(0.0, deadline_s - time.monotonic()))

    def close(self) -> None:
        """End it, and those that wait."""
        self._socket.close()
        for channel in (channel for channels in self._asked for channel in channels):
            channel.close()
        self.dismiss()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)


def _describe(error: OSError) -> str:
    return ENDED if isinstance(error, BrokenPipeError | ConnectionResetError) else str(error)


def _read_signals() -> dict[str, list[int]]:
    """What a process that is executed now begins with: the signals that it ignores, and those that are blocked."""
    ignored = [signum for signum in signal.valid_signals() if signal.getsignal(signum) == signal.SIG_IGN]
    return {"ignored": [*map(int, ignored)], "blocked": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))]}


def _is_readable(channel: socket.socket, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
