"""The pre-flight as guardrun sees it: a process started before torch, and asked once, before the first attempt."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from guardrun.launcher.base.terminal_lines import NOT_FIT, RefusedError, print_line
from guardrun.supervisor.base.known_types import known_type

if TYPE_CHECKING:
    from guardrun.launcher.base.signals import Signals
    from guardrun.supervisor.preflight.base.remark import Refusals, Subject

CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.supervisor.preflight.preflight_process import leave; leave()"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""

QUICK_WAIT_S = 0.1
"""For what has been looked at while torch was imported. Later than that it is said, and stops nothing."""
FIRST_WAIT_S = 5.0
FULL_WAIT_S = 600.0
"""For the trial of the devices: the run waits for it. Every part of it has limits of its own, far below."""
FLAG = "--guard-preflight"


def is_off(arguments: list[str], variable: str | None) -> bool:
    """Say whether a command line and its variable plainly want no pre-flight: then none is started in vain."""
    places = [place for place, argument in enumerate(arguments) if argument.startswith(FLAG)]
    if not places:
        return variable == "off"
    return f"{FLAG}=off" in ("=".join(arguments[places[-1] : places[-1] + 2]), arguments[places[-1]])


class Preflight:
    """One guardrun's pre-flight, from its start to its end."""

    def __init__(self) -> None:
        """Start it. Raises OSError where it cannot be."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, "guardrun-preflight"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """Of the process that looks at this node; no child of training's."""
        return self._process.pid

    def check(self, level: str, subject: Subject, port: int | None, signals: Signals) -> None:
        """Raise RefusedError where no run can get past what was found; tell it the rest of what it needs.

        level: `quick` or `full`. subject: without its environment, which the process has. port: to be free.
        Raises SystemExit where a signal comes meanwhile.
        """
        from guardrun.supervisor.preflight.base.remark import Assignment, Refusals

        is_full = level == "full"
        first = self._hear(Refusals, FIRST_WAIT_S if is_full else QUICK_WAIT_S, signals)
        refused = [*(_port(port) if port else []), *(first or [])]
        if not refused:
            self._write_line(msgspec.json.encode(Assignment(level=level, subject=subject)))
        if not refused and is_full:
            print_line("pre-flight: trying the devices before the first attempt")
            answer = self._hear(Refusals, FULL_WAIT_S, signals)
            if first is None and answer == []:  # that was the first line, which came late: the trial goes on
                answer = self._hear(Refusals, FULL_WAIT_S, signals)
            refused = answer or []
            if answer is None:
                print_line("warning: the pre-flight ended without an answer; going on")
        if refused:
            text = "\nguardrun: refused: ".join(refused)
            raise RefusedError(f"{text}\nguardrun: --guard-preflight=off runs all the same", NOT_FIT)

    def record(self, run_dir: Path) -> None:
        """Name the run directory, and leave it to itself."""
        self._write_line(os.fsencode(run_dir))
        self._close()

    def end(self) -> None:
        """It is not to outlive the run."""
        self._process.kill()
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def _hear(self, kind: type[Refusals], wait_s: float, signals: Signals) -> list[str] | None:
        """What it says next; None where it says nothing in time, or is gone. Raises SystemExit at a signal."""
        deadline_s = time.monotonic() + wait_s
        stdout = _pipe(self._process.stdout)
        wanted: list[Any] = [stdout, signals]
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            ready = select.select(wanted, [], [], left_s)[0] if left_s > 0 else []
            if not ready:
                return None
            if signals in ready and (taken := signals.pop_pending()):
                raise SystemExit(128 + taken[0])
            if stdout in ready:
                data = os.read(stdout.fileno(), 65536)
                if not data:
                    return None
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=known_type(kind)).refused
        return None

    def _write_line(self, line: bytes) -> None:
        with suppress(OSError, ValueError):  # It is gone, or was never any good: no reason not to train.
            stdin = _pipe(self._process.stdin)
            stdin.write(line + b"\n")
            stdin.flush()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                _pipe(pipe).close()


def _port(port: int) -> list[str]:
    from guardrun.supervisor.preflight.base.remark import Severity
    from guardrun.supervisor.preflight.checks.ports import check_port

    remark = check_port(port)
    return [f"{remark.summary} {remark.advice}"] if remark.severity is Severity.REFUSE else []


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
