"""Python stacks of one process, by py-spy where it may, else by the rank itself: its hooks, or its faulthandler.

Read the state first: a stopped process or one in uninterruptible wait answers no signal, and blocks whoever attaches.
py-spy without a pause reads memory only, so it works in every state but death.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from guardrun.hooks.wire.board import Field
from guardrun.launcher.base.processes import send_signal
from guardrun.supervisor.collect.host.procfs import (
    ThreadStat,
    read_bytes,
    read_exe,
    read_stat,
    read_status,
    read_threads,
)
from guardrun.supervisor.collect.ranks.boards import BoardReader
from guardrun.supervisor.collect.ranks.stack_dumps import GONE, NO_PYTHON, TIMEOUT_S, dump_pyspy, parse_faulthandler
from guardrun.supervisor.engine.model.looks import PYSPY, ThreadLook

_SIGNAL_STATES = "RS"
_MAPS_BYTES = 1 << 20
_FAULT_WAIT_S = 2.0
_FAULT_POLL_S = 0.01
_FAULT_QUIET = 20
"""Times that the file is found as long as before: faulthandler writes a dump in many pieces, and may be kept from its
CPU between two of them."""
_FAULT_BYTES = 256 * 1024
_HOOKS_WAIT_S = 1.6
"""The hooks' thread beats once a second."""
_HOOKS_BYTES = 2 * 1024 * 1024
_SURELY_NATIVE_S = 0.05
"""Of CPU time, without handing on the GIL: ten times sys.getswitchinterval()."""
_WAKES = 10
"""Of a thread that waits for the GIL, at the least: it wakes after each sys.getswitchinterval(), to ask for it."""

FAULTHANDLER, HOOKS = "faulthandler", "the rank's hooks"
GIL_HELD = "the GIL is held"


class Fallback(NamedTuple):
    """How a rank's own process writes its own stacks."""

    signum: int
    """Board.DUMP_SIGNAL."""
    path: Path
    """Where to."""
    board: BoardReader
    """The rank's, by which its hooks are asked."""


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
    the program to run, found where None. Takes timeout_s at most, and four seconds more where the process must write
    its stacks itself.
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
    source, text, trouble = HOOKS, *ask_hooks(pid, start, fallback)
    if trouble == GIL_HELD:
        source, text, trouble = FAULTHANDLER, *ask_faulthandler(pid, start, fallback)
    threads = parse_faulthandler(text, pid)
    if not threads:
        return seen._replace(trouble=f"{dump.trouble}; {trouble or f'{source} wrote no stacks'}")
    return StackDump(threads, source, f"{dump.trouble}: stacks by {source}", text)


def ask_hooks(pid: int, start: int, fallback: Fallback) -> tuple[str, str]:
    """Let a rank's hooks write its stacks, by a thread that needs the GIL; answers (new text, trouble).

    trouble is GIL_HELD where that thread waits for the GIL, and whoever has it hands it to nobody, though it runs.
    """
    stat, words = read_stat(pid), fallback.board.read()
    if stat is None or stat.start != start:
        return "", GONE
    if words is None:
        return "", "the rank's hooks can't be asked: its board can't be read"
    if stat.state not in _SIGNAL_STATES:
        return "", f"it can't write its stacks in state {stat.state}"
    if not words[Field.HEART_NS]:
        return "", "the rank's hooks are not there to be asked"
    before = {thread.tid: thread for thread in read_threads(pid)}
    try:
        size = fallback.path.stat().st_size
    except OSError as error:
        return "", f"the rank's hooks can't be asked: {error.strerror}"
    asked = words[Field.STACKS_ASKED] + 1
    fallback.board.write(Field.STACKS_ASKED, asked)
    deadline = time.monotonic() + _HOOKS_WAIT_S
    while time.monotonic() < deadline:
        time.sleep(_FAULT_POLL_S)
        now = fallback.board.read()
        if now is not None and now[Field.STACKS_GIVEN] == asked:
            return _read_from(fallback.path, size), ""
    if (
        now is not None
        and now[Field.HEART_NS] == words[Field.HEART_NS]
        and is_gil_held(before, read_threads(pid), now[Field.HEART_TID])
    ):
        return "", GIL_HELD
    return "", "the rank's hooks did not answer"


def is_gil_held(before: Mapping[int, ThreadStat], now: Sequence[ThreadStat], heart_tid: int) -> bool:
    """Say whether nothing that runs in a process can be Python: of its hooks nothing was heard between two looks.

    Python hands on the GIL within milliseconds of its own CPU time when another thread wants it, as the hooks' thread
    does. So whoever has run for longer without that is in native code, and whoever sleeps stands still; but who was
    given no CPU may be anywhere.
    """
    has_asked = False
    for thread in now:
        old = before.get(thread.tid, thread)
        if thread.tid == heart_tid:
            has_asked = thread.state == "S" and thread.switches - old.switches >= _WAKES
        elif thread.state == "R" and thread.cpu_s - old.cpu_s < _SURELY_NATIVE_S:
            return False
    return has_asked


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


def _read_from(path: Path, before: int) -> str:
    """What is written behind `before`; empty where the file can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(before)
            return file.read(_HOOKS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_growth(path: Path, before: int) -> str:
    """What is written behind `before` until it stops growing, for _FAULT_WAIT_S at most."""
    deadline = time.monotonic() + _FAULT_WAIT_S
    size, quiet = before, 0
    try:
        while time.monotonic() < deadline:
            time.sleep(_FAULT_POLL_S)
            now = path.stat().st_size
            quiet = quiet + 1 if now == size else 0
            if now > before and quiet >= _FAULT_QUIET:
                break
            size = now
        with path.open("rb") as file:
            file.seek(before)
            return file.read(_FAULT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
