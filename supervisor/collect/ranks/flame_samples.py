"""What a process does over some time: `py-spy record`, run as a program; its samples counted by stack, and bounded.

`--nonblocking`, so that the process is never paused, unless native frames are asked for: then py-spy stops it for each
sample, some milliseconds long, and pauses.py is told. Threads that wait are sampled as well: on a training thread it is
the waiting that one looks for.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import compress

from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.stack_dumps import NOT_INSTALLED, end_program, explain_failure, find_pyspy

MAX_RAW_BYTES = 64 << 20
"""Of py-spy's output, which lies where the ranks' boards do, often in memory: it can't write more."""
END_S = 0.1
"""How long the end of one that is killed is waited for."""
MAX_PACKED_BYTES = 256 << 10
"""Of one process's stacks on their way to whoever asked: 8 ranks' fit into one message between nodes."""
_MAX_SAID_BYTES = 4096

_LINE = re.compile(r"(.+) (\d+)")
_WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")


class Samples(NamedTuple):
    """What was seen of one process."""

    stacks: Counter[str]
    """`thread (TID): NAME;outermost;…;innermost` → how often; a frame is `function (file:line)`."""
    taken: int
    """Samples of all threads, as py-spy says; …"""
    errors: int
    """… and how often it failed to take one."""


class Recording:
    """One py-spy at work. Neither method waits."""

    def __init__(self, pid: int, path: Path, *, seconds: float, rate: int, native: bool) -> None:
        """Begin. path: what py-spy writes, with `.said` beside it. Raises OSError, also where there is no py-spy."""
        program = find_pyspy()
        if not program:
            raise FileNotFoundError(NOT_INSTALLED)
        self.path, self._said = path, path.with_suffix(".said")
        self._paused = pid if native else 0
        command = [
            program, "record", "--pid", str(pid), "--format", "raw", "--output", str(path), "--full-filenames",
            "--idle", "--threads", "--rate", str(rate), "--duration", str(max(1, round(seconds))),
            "--native" if native else "--nonblocking",
        ]  # fmt: skip
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        said = os.open(self._said, flags, 0o600)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env={**os.environ, "RUST_BACKTRACE": "0"},
            )
        finally:
            os.close(said)
        with suppress(OSError):  # it may have ended by now
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (MAX_RAW_BYTES, MAX_RAW_BYTES))
        if self._paused:
            PAUSES.begin(self._paused)

    def poll(self) -> int | None:
        """Its exit status; None while it records."""
        status = self._process.poll()
        if status is not None:
            self._unpause()
        return status

    def end(self) -> None:
        """Stop it, whatever it has, and forget its files."""
        if self._process.poll() is None:
            end_program(self._process, END_S)
        self._unpause()
        for path in (self.path, self._said):
            path.unlink(missing_ok=True)

    def read(self) -> Samples:
        """What it has seen, once it has ended. Raises ValueError that says why there is nothing."""
        said = _head(self._said, _MAX_SAID_BYTES)
        if self._process.returncode == -signal.SIGXFSZ:
            raise ValueError(f"py-spy wanted to write more than {MAX_RAW_BYTES >> 20} MiB")
        if self._process.returncode:
            raise ValueError(explain_failure(said))
        try:
            with self.path.open("rb") as file:
                stacks = count_stacks(file)
        except OSError as error:
            raise ValueError(f"py-spy left no samples: {error.strerror}") from None
        if not stacks:
            raise ValueError("py-spy took no sample before the process ended, or before it was stopped")
        told = _WROTE.search(_tail(self._said, _MAX_SAID_BYTES))
        taken, errors = (int(told[1]), int(told[2])) if told else (sum(stacks.values()), 0)
        return Samples(stacks, taken, errors)

    def _unpause(self) -> None:
        paused, self._paused = self._paused, 0
        if paused:
            PAUSES.end(paused)


def count_stacks(lines: Iterable[bytes]) -> Counter[str]:
    """Add up lines of py-spy's raw format, `outermost;…;innermost COUNT`; what is none is passed over."""
    stacks: Counter[str] = Counter()
    read = 0
    for line in lines:
        read += len(line)
        if read > MAX_RAW_BYTES:
            break
        found = _LINE.fullmatch(line.decode("utf-8", "replace").rstrip("\n"))
        if found is not None:
            stacks[found[1]] += int(found[2])
    return stacks


def pack(stacks: Counter[str], limit: int = MAX_PACKED_BYTES) -> tuple[str, int]:
    """Lines as count_stacks reads them, the most frequent first, compressed, in base64; and what is left out.

    limit: bytes; the rarest stacks are left out where there is no room for all.
    """
    lines = [f"{stack} {count}" for stack, count in stacks.most_common()]
    kept = len(lines)
    while True:
        packed = b64encode(compress("\n".join(lines[:kept]).encode())).decode("ascii")
        if len(packed) <= limit or not kept:
            return packed, sum(count for _, count in stacks.most_common()[kept:])
        kept = kept * limit // len(packed)


def _head(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(limit).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _tail(path: Path, limit: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""
