"""torch's own dump of NCCL's flight recorder: asked for by a named pipe, written to a file, by a thread in C++.

torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, HeartbeatMonitor::runLoop: the monitor of the first group looks into
the pipe once a second, and has a thread write a pickle with all entries and their Python stacks. For the stacks that
thread waits for the GIL. Nothing in the pickle is ever called.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from guardrun.supervisor.checkpoints.reading.pickles import BadPickle, TooDeep, TooLong, walk_pickle

MAX_BYTES = 32 * 1024 * 1024
MAX_VALUES = 400_000
"""2000 entries of 30 values and their sizes, three times over."""
MAX_DEPTH = 6
_LOOK_S = 0.05


def dump_by_pipe(pid: int, stem: str, prefix: str, deadline: float) -> bytes | None:
    """Have process pid dump, by the pipe that it has open; the dump as JSON, without stacks, once it is there.

    stem, prefix: what the names of pipe and file begin with; torch appends the rank. deadline is time.monotonic()'s.
    None: it came not in time, or can't be read, or there is no such pipe.
    """
    pipe = find_pipe(pid, stem)
    if not pipe:
        return None
    path = prefix + pipe[len(stem) : -len(".pipe")]
    before = _stamp(path)
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, b"1")
        finally:
            os.close(fd)
    except OSError:
        return None
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        if _stamp(path) != before and (data := _read(path)) is not None:
            return data
    return None


def find_pipe(pid: int, stem: str) -> str:
    """The pipe whose name begins with stem, if the process itself has it open; else empty.

    A child of the rank's that makes groups of its own takes the name for a pipe of its own.
    """
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                path = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if path.startswith(stem) and path.endswith(".pipe"):
                return path
    except OSError:
        pass
    return ""


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        at = os.stat(path)
    except OSError:
        return 0, 0, 0
    return at.st_ino, at.st_mtime_ns, at.st_size


def _read(path: str) -> bytes | None:
    """A dump as JSON; None while it is incomplete, or where it is none."""
    try:
        if os.path.getsize(path) > MAX_BYTES:
            return None
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES)
        return convert_dump(data)
    except (OSError, BadPickle, TooLong, TooDeep, MemoryError, ValueError):
        return None


def convert_dump(data: bytes) -> bytes:
    """A pickled dump as the JSON that the worker server would have given.

    Raises ValueError (BadPickle), TooLong, TooDeep where it is none that torch writes.
    """
    value, _ = walk_pickle(data)
    if not isinstance(value, dict):
        raise ValueError("no dump")
    budget = [MAX_VALUES]
    return msgspec.json.encode({key: _plain(each, budget, MAX_DEPTH) for key, each in value.items()})


def _plain(value: Any, budget: list[int], depth: int) -> Any:
    """The value without stacks. Raises ValueError for what no dump has: other types, too much, or too deep."""
    budget[0] -= 1
    if budget[0] < 0 or depth < 0:
        raise ValueError("too much for a dump")
    if isinstance(value, dict):
        return {str(key): _plain(each, budget, depth - 1) for key, each in value.items() if key != "frames"}
    if isinstance(value, list | tuple):
        return [_plain(each, budget, depth - 1) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"no dump has a {type(value).__name__}")
