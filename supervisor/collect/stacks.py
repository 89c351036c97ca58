"""Python stacks of one process, by py-spy where it may, else by the faulthandler that the hooks armed in a rank.

Read the state first: a stopped process or one in uninterruptible wait answers no signal, and blocks whoever attaches.
py-spy without a pause reads memory only, so it works in every state but death.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from guardrun.launcher.handles import send_signal
from guardrun.supervisor.collect.faulttext import parse_faulthandler
from guardrun.supervisor.collect.procfs import read_bytes, read_exe, read_stat, read_status
from guardrun.supervisor.collect.pyspy import GONE, NO_PYTHON, TIMEOUT_S, dump_pyspy
from guardrun.supervisor.core.looks import PYSPY, ThreadLook

_SIGNAL_STATES = "RS"
_MAPS_BYTES = 1 << 20
_FAULT_WAIT_S = 1.0
_FAULT_POLL_S = 0.01
_FAULT_BYTES = 256 * 1024

FAULTHANDLER = "faulthandler"


class Fallback(NamedTuple):
    """How a process writes its own stacks."""

    signum: int
    """Board.DUMP_SIGNAL; 0 = it doesn't."""
    path: Path
    """Where to."""


class StackDump(NamedTuple):
    """Stacks of one process, or the reason why there are none."""

    threads: list[ThreadLook]
    source: str = ""
    trouble: str = ""
    text: str = ""
    """As py-spy or faulthandler gave it."""


def is_python(pid: int, state: str) -> bool:
    """Say whether a process may run Python: by its program, else by a libpython among its maps.

    True where neither may be read: then py-spy has the last word. In state D the maps may be locked, so they aren't
    read.
    """
    program = read_exe(pid)
    if "python" in os.path.basename(program).lower():
        return True
    if state == "D":
        return False
    maps = read_bytes(f"/proc/{pid}/maps", _MAPS_BYTES)
    if maps is None:
        return not program
    return b"libpython" in maps


def dump_stacks(
    pid: int,
    start: int,
    *,
    fallback: Fallback | None = None,
    timeout_s: float = TIMEOUT_S,
    native: bool = False,
    pyspy: str | None = None,
) -> StackDump:
    """Take the stacks of the process with that pid and start time.

    native adds C frames, and pauses the process: it is dropped where the process neither runs nor sleeps. pyspy is
    the program to run, found where None. Takes timeout_s at most, and a second more where the process must write its
    stacks itself.
    """
    stat = read_stat(pid)
    if stat is None or stat.start != start or stat.state == "X":
        return StackDump([], trouble=GONE)
    if stat.state == "Z":
        return StackDump([], trouble="a zombie: dead, not yet reaped")
    if not is_python(pid, stat.state):
        return StackDump([], trouble="not a Python process")
    dump = dump_pyspy(pid, timeout_s=timeout_s, native=native and stat.state in _SIGNAL_STATES, program=pyspy)
    if not dump.trouble:
        return StackDump(dump.threads, PYSPY, "", dump.text)
    seen = StackDump(dump.threads, PYSPY if dump.threads else "", dump.trouble, dump.text)
    if dump.trouble in (GONE, NO_PYTHON) or fallback is None or fallback.signum <= 0:
        return seen
    text, trouble = ask_faulthandler(pid, start, fallback)
    threads = parse_faulthandler(text, pid)
    if not threads:
        return seen._replace(trouble=f"{dump.trouble}; {trouble or 'faulthandler wrote no stacks'}")
    return StackDump(threads, FAULTHANDLER, f"{dump.trouble}: stacks by faulthandler", text)


def ask_faulthandler(pid: int, start: int, fallback: Fallback) -> tuple[str, str]:
    """Let a process write its own stacks; answers (new text, trouble).

    The signal is sent only where the process has a handler for it and can run it: without one it would end.
    """
    stat, status = read_stat(pid), read_status(pid)
    if stat is None or status is None or stat.start != start:
        return "", GONE
    if stat.state not in _SIGNAL_STATES:
        return "", f"faulthandler can't run in state {stat.state}"
    if not status.catches(fallback.signum):
        return "", f"the rank doesn't handle signal {fallback.signum}"
    try:
        if not holds_open(pid, fallback.path):
            # Closed under faulthandler, which would write to whatever file of the script has its number now.
            return "", "the rank no longer has the file for its stacks open"
        before = fallback.path.stat().st_size
        send_signal(pid, start, fallback.signum)
    except OSError as error:
        return "", f"faulthandler can't be asked: {error.strerror}"
    return _read_growth(fallback.path, before), ""


def holds_open(pid: int, path: Path) -> bool:
    """Say whether a process has that file open, by its name: asking the files themselves could block on a dead mount.

    Raises OSError where it can't be told.
    """
    folder = f"/proc/{pid}/fd"
    wanted = os.path.realpath(path)
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}") == wanted:
                return True
        except FileNotFoundError:  # Closed meanwhile.
            continue
    return False


def _read_growth(path: Path, before: int) -> str:
    """What is written behind `before` until it stops growing, a second at most."""
    deadline = time.monotonic() + _FAULT_WAIT_S
    size = before
    try:
        while time.monotonic() < deadline:
            time.sleep(_FAULT_POLL_S)
            now = path.stat().st_size
            if now > before and now == size:
                break
            size = now
        with path.open("rb") as file:
            file.seek(before)
            return file.read(_FAULT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
