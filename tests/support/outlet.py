"""A Python script whose stderr is a pipe, or a terminal, of which somebody else passes on what comes.

python tests/support/outlet.py pipe|both|terminal SCRIPT …

`pipe`: stderr alone. `both`: stdout is the very same pipe. `terminal`: both are, and stdin. What is passed on goes to
the stderr that this was started with; of a terminal, to its stdout. It ends as the script has, once all is passed on.
"""

from __future__ import annotations

import contextlib
import os
import pty
import runpy
import sys


def guardrun_with(kind: str) -> list[str]:
    """What a test starts in guardrun's place."""
    from tests.support.real import find_program  # not in the process that becomes guardrun

    guardrun = find_program("guardrun")
    assert guardrun is not None
    return [sys.executable, __file__, kind, guardrun]


def be(script: list[str]) -> None:
    """Run it, in this process."""
    sys.argv[:] = script
    runpy.run_path(script[0], run_name="__main__")


def start(kind: str, script: list[str]) -> tuple[int, int]:
    """Its pid, and where to read what it writes; does not return in the new process."""
    if kind == "terminal":
        pid, reader = pty.fork()
    else:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            for number in (1, 2) if kind == "both" else (2,):
                os.dup2(writer, number)
        os.close(writer)
    if pid == 0:
        be(script)
        sys.exit()
    return pid, reader


def pass_on(reader: int, writer: int) -> None:
    with contextlib.suppress(OSError):  # a terminal that nobody has open any more
        while data := os.read(reader, 1 << 16):
            while data:
                data = data[os.write(writer, data) :]


if __name__ == "__main__":
    kind, *script = sys.argv[1:]
    pid, reader = start(kind, script)
    pass_on(reader, 1 if kind == "terminal" else 2)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(code if code >= 0 else 128 - code)
