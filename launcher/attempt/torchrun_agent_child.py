"""torchrun's own agent in a process of its own: forked, so that torch need not be imported again.

It waits for the word to begin, which brings what guardrun adds to the environment and the arguments; end of input
without it means that nothing is to be run. It says which ranks of an attempt failed, and how, once it has ended the
others, and again as it fails itself: it takes their exit codes, and whoever watches may have seen none of them live.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from guardrun.launcher.base.processes import ProcessHandle
from guardrun.launcher.base.terminal_lines import flush_streams

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


Tell = Callable[[Mapping[int, Any]], object]
"""Takes an attempt's failures: a ProcessFailure of torch's per global rank."""

Launch = Callable[[list[str], Tell], None]
"""torchrun, given what is to be appended to the script's arguments, and whom to tell of failures."""


@dataclass(frozen=True)
class Failure:
    """A rank that failed, as the agent has it."""

    global_rank: int
    local_rank: int
    pid: int
    exitcode: int
    """As subprocess has it."""
    error_file: str
    """Path; may not be there."""


class AgentChild:
    """The forked process, as its parent sees it."""

    def __init__(self, run: Launch) -> None:
        """Fork. Raises OSError.

        Call from the main thread, before other threads are there, as a fork takes only its own thread along.
        """
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self._failures_reader, failures_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        flush_streams()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            os.close(self._failures_reader)
            _live(reader, failures_writer, parent, run)
        os.close(reader)
        os.close(failures_writer)
        self._handle = ProcessHandle(self.pid)
        self._exitcode: int | None = None
        self._unread = b""
        self._told: dict[int, int] = {}
        self._last: list[Failure] = []

    def begin(self, environment: Mapping[str, str | None], arguments: list[str]) -> None:
        """Give the word. A child that is gone already is found by `poll`."""
        try:
            os.write(self._writer, json.dumps([environment, arguments]).encode())
        except BrokenPipeError:
            pass
        self._close_writer()

    @property
    def fileno(self) -> int | None:
        """Readable once it has ended; None: `poll`."""
        return self._handle.fileno

    def poll(self) -> int | None:
        """Its exit code, as subprocess has it; None while it lives."""
        if self._exitcode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exitcode = os.waitstatus_to_exitcode(status)
        return self._exitcode

    def failures(self) -> list[Failure]:
        """What it ended for, once it has; empty where it failed in another way."""
        self._read_told()
        return self._last

    def told_exitcodes(self) -> dict[int, int]:
        """By pid, of the ranks that it has told to have failed so far, in any attempt."""
        self._read_told()
        return self._told

    def _read_told(self) -> None:
        with suppress(OSError):  # no more yet, or closed
            while chunk := os.read(self._failures_reader, 65536):
                self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            with suppress(ValueError):  # cut off where the pipe was full
                message = json.loads(line)
                failures = [Failure(**failure) for failure in message["failures"]]
                self._told |= {failed.pid: failed.exitcode for failed in failures}
                self._last = failures if message["is_last"] else []

    def signal(self, signum: signal.Signals) -> None:
        """Signal the agent alone, not its ranks; nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def close(self) -> None:
        """Close descriptors; ends a child that has not begun."""
        self._close_writer()
        self._handle.close()
        if self._failures_reader >= 0:
            os.close(self._failures_reader)
            self._failures_reader = -1

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1


def _live(reader: int, failures_writer: int, parent: int, run: Launch) -> None:
    """The child's whole life; never returns."""
    status = 1
    try:
        _become_agent(parent)
        word = b"".join(iter(lambda: os.read(reader, 65536), b""))
        os.close(reader)
        if word:
            environment, arguments = json.loads(word)
            for name, value in environment.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
            run(arguments, partial(_send_failures, failures_writer, is_last=False))
            status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        # ProcessFailure per global rank, where it is torch's ChildFailedError.
        _send_failures(failures_writer, getattr(error, "failures", {}), is_last=True)
    finally:
        flush_streams()
        os._exit(status)


def _send_failures(writer: int, failures: Mapping[int, Any], *, is_last: bool) -> None:
    """Never waits, as what finds the pipe full is lost; never raises, as the agent goes on whatever is told of it."""
    with suppress(Exception):
        told = [
            asdict(Failure(rank, failed.local_rank, failed.pid, failed.exitcode, failed.error_file))
            for rank, failed in failures.items()
        ]
        os.write(writer, json.dumps({"is_last": is_last, "failures": told}).encode() + b"\n")


def _become_agent(parent: int) -> None:
    """A process of its own: out of the terminal's foreground group, no handlers of guardrun's, gone when it is."""
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
