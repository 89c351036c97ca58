"""The processes of a full pre-flight, one a device: started, asked part by part, ended whatever they do.

What they do is in launcher/device_trial/. Each answers in lines of JSON; one that does not in time hangs in that part,
and its process is killed and not waited for: a driver may hold it for ever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple

CODE = (
    "import sys; sys.path[:] = [entry for entry in sys.path if entry]; "
    "from guardrun.launcher.device_trial.program import main; sys.exit(main(sys.argv[1:]))"
)
"""Without '' on sys.path, the user's working folder can shadow nothing."""
MAX_LINE = 1 << 20


class Answer(NamedTuple):
    """What a device's process said to one part."""

    data: dict[str, Any]
    error: str = ""
    """In words: what was raised, or how the process ended."""
    is_hanging: bool = False
    """No answer in time."""


class Trial:
    """One device's process."""

    def __init__(
        self, device: str, *, rank: int, ranks: int, store: str, environ: Mapping[str, str], log: IO[bytes]
    ) -> None:
        self.device = device
        self._buffer = b""
        self._over = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", CODE, device, str(rank), str(ranks), store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            env={name: value for name, value in environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the device's process, which leads a process group of its own."""
        return self._process.pid

    def ask(self, part: str) -> None:
        """Have it begin a part; `hear` tells what came of it."""
        with suppress(OSError):
            stdin = self._pipe(self._process.stdin)
            stdin.write(part.encode() + b"\n")
            stdin.flush()

    def hear(self, part: str, deadline_s: float) -> Answer:
        """Its answer to a part (`ready`: to its start); waits until deadline_s on CLOCK_MONOTONIC."""
        if self._over:
            return Answer({}, self._over)
        stdout = self._pipe(self._process.stdout)
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([stdout], [], [], left_s)[0]:
                self._over = f"it did not come back from {part}"
                self.kill()
                return Answer({}, self._over, is_hanging=True)
            data = os.read(stdout.fileno(), 65536)
            if not data or len(self._buffer) > MAX_LINE:
                self._over = self._ending()
                return Answer({}, self._over)
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return _parse(line)

    @property
    def is_over(self) -> bool:
        """It has hung or ended: it answers nothing any more."""
        return bool(self._over)

    def kill(self) -> None:
        """End it and all that it has started; any thread may."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, and wait a moment for that."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                self._pipe(pipe).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)

    def _ending(self) -> str:
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with status {code}"

    def _pipe(self, pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _parse(line: bytes) -> Answer:
    try:
        data = json.loads(line)
    except ValueError:
        return Answer({}, f"it said {line[:80]!r}")
    return Answer(data, str(data.get("error", "")))


def ask_all(trials: Sequence[Trial], part: str, timeout_s: float) -> dict[str, Answer]:
    """Have all devices do a part at once; the answers by device."""
    for trial in trials:
        trial.ask(part)
    return hear_all(trials, part, timeout_s)


def hear_all(trials: Sequence[Trial], part: str, timeout_s: float) -> dict[str, Answer]:
    """The answers to a part that has begun, by device; all together wait timeout_s at most."""
    deadline_s = time.monotonic() + timeout_s
    return {trial.device: trial.hear(part, deadline_s) for trial in trials}
