"""The process that reads one trace: it adds it up, and compresses it on the way; its own process, with limits.

A rank has written the file: it may be of any size and hold anything. Whatever it costs, it costs this process, which
has so much memory and computing time and no more, gives way to ranks, and answers with a line of JSON that is bounded.

    python -c PROGRAM ROOT TRACE COMPRESSED        answers on stdout
"""

from __future__ import annotations

import os
import resource
import sys
import zlib
from contextlib import suppress

import msgspec

from guardrun.supervisor.base.confinement import confine
from guardrun.supervisor.collect.profiles.breakdown import Reading
from guardrun.supervisor.collect.profiles.chrome_trace import ChromeTrace
from guardrun.supervisor.rundir.profiles import Breakdown

MEMORY_BYTES = 1 << 30
CPU_S = 60
NICE = 5
"""A quarter of a core beside a rank that computes: with less, it would not end in time on a node that is busy."""
MAX_EVENTS = 1_000_000
MAX_TRACE_BYTES = 1 << 30
LEVEL = 1
"""zlib's: 30 to 1, in a second a GB."""


class Answer(msgspec.Struct, frozen=True):
    """What the process says."""

    breakdown: Breakdown | None = None
    trace_bytes: int = 0
    trace_trouble: str = ""
    """Why there is no compressed trace."""


class _Along:
    """Reads a file, and compresses what it reads into another."""

    def __init__(self, source: int, target: str) -> None:
        self._source, self._target = source, target
        self._left = MAX_TRACE_BYTES
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, 31)  # with gzip's head and sum
        self.written = 0
        self.trouble = ""
        try:
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            self._fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._fd, self.trouble = -1, str(error.strerror or error)

    def read(self, size: int) -> bytes:
        data = os.read(self._source, min(size, self._left))
        self._left -= len(data)
        self._write(self._deflate.compress(data))
        if not data and not self._left and os.read(self._source, 1):
            self.trouble = self.trouble or f"it is longer than {MAX_TRACE_BYTES >> 20} MB"
        return data

    def close(self) -> None:
        """No half of a trace is left behind."""
        self._write(self._deflate.flush())
        if self._fd >= 0:
            os.close(self._fd)
        if self.trouble:
            self.written = 0
            if self._fd >= 0:
                with suppress(OSError):
                    os.unlink(self._target)

    def _write(self, data: bytes) -> None:
        try:
            while data and self._fd >= 0 and not self.trouble:
                count = os.write(self._fd, data)
                self.written += count
                data = data[count:]
        except OSError as error:
            self.trouble = str(error.strerror or error)


def read_trace(source: int, target: str) -> Answer:
    """Read an open trace, and compress it into a file that is not there yet. Raises OSError."""
    along = _Along(source, target)
    trace, reading = ChromeTrace(along.read, MAX_EVENTS), Reading()
    try:
        for event in trace.events():
            reading.add(event)
        trace.drain()
        breakdown = reading.breakdown(trace.device_name, trace.trouble)
    finally:
        along.close()
    return Answer(breakdown, along.written, along.trouble)


def main() -> None:
    """Read the trace that the command line names."""
    with suppress(OSError):
        os.nice(NICE)
    confine(
        {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: MAX_TRACE_BYTES,
            resource.RLIMIT_AS: MEMORY_BYTES,
            resource.RLIMIT_CPU: CPU_S,
        }
    )
    trace, compressed = sys.argv[-2:]
    source = os.open(trace, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    sys.stdout.buffer.write(msgspec.json.encode(read_trace(source, compressed)))
    sys.stdout.flush()
