"""One call of a tool, in a process of its own: `python -m guardrun.supervisor.cli.assistants.worker`.

A Request comes on standard input, an Answer leaves on standard output. What may be read is the run's: files without
end, a file system that does not answer, a query that nothing interrupts. The server ends this process where it takes
too long, and then neither the server nor another call has suffered.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from guardrun.supervisor.base.known_types import known_type

PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""
MODULE = "guardrun.supervisor.cli.assistants.worker"
MAX_MEMORY = 6 << 30
"""Bytes of addresses: far beyond what an answer takes, and short of what takes a machine down."""


class Request(msgspec.Struct, kw_only=True):
    """What is asked."""

    tool: str
    arguments: Any
    folders: list[str]
    """In which runs are looked for."""
    cwd: str
    parent: int
    """The server's pid."""


def main() -> int:
    """Answer one request."""
    # Nothing but the answer goes where it is read: whatever else is printed goes to the server's log.
    target = os.dup(1)
    os.dup2(2, 1)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    request = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=known_type(Request))
    if os.getppid() != request.parent:  # it has ended before the kernel was told
        return 1
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    os.chdir(request.cwd)

    from guardrun.supervisor.base.printable import encode_msgpack
    from guardrun.supervisor.cli.assistants.calls import Scope, answer

    scope = Scope(tuple(map(Path, request.folders)), os.environ, Path(request.cwd))
    with open(target, "wb") as file:
        file.write(encode_msgpack(answer(scope, request.tool, request.arguments)))
    return 0


def leave() -> None:
    """Run main and end at once: a thread that is stuck in a file system holds up nobody."""
    try:
        status = main()
        sys.stderr.flush()
    except BrokenPipeError:
        status = 1
    os._exit(status)


if __name__ == "__main__":
    leave()
