"""How a script says that it has got somewhere: one line of JSON, in one write."""

from __future__ import annotations

import os
import time

RANK = int(os.environ.get("RANK", "0"))
ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def note(what: str, at_ns: int | None = None) -> None:
    """Write a moment (now, where no CLOCK_MONOTONIC time is given) to the benchmark's file."""
    at_ns = time.monotonic_ns() if at_ns is None else at_ns
    line = f'{{"what": "{what}", "at_ns": {at_ns}, "attempt": {ATTEMPT}, "rank": {RANK}, "pid": {os.getpid()}}}\n'
    fd = os.open(os.environ["BENCH_MOMENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
