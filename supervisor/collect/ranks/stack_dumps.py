"""Stacks as other programs give them: py-spy, bounded in time, its JSON parsed; and what faulthandler writes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from typing import Any, NamedTuple

from guardrun.supervisor.engine.model.looks import Frame, ThreadLook
from guardrun.supervisor.engine.observation.frames import is_users

# Faulthandler text --------------------------------------------------------------------------------------------------
# The text that faulthandler writes: CPython's Python/traceback.c, 3.10 to 3.14.
#
# Threads have no native id in it, only pthread's. The main thread is written last: the interpreter lists the newest
# thread first.


MAX_FRAMES = 60

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(.*)\] )?\(most recent call first\):")
_STACK = re.compile(r"^Stack \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')

_FATAL = "Fatal Python error: "
_CURRENT = "Current thread 0x"
_OTHER = "\nThread 0x"


def parse_fatal(text: str) -> list[Frame]:
    """Parse what a fatal signal left: the last one's stack, innermost first, of the thread that it met.

    Where that runs no Python (gloo's own thread ends the process), the main thread's.
    """
    last = text[max(text.rfind(_FATAL), 0) :]
    current = last.partition(_CURRENT)[2]
    for part in (f"{_CURRENT}{current.partition(_OTHER)[0]}" if current else "", last):
        threads = parse_faulthandler(part)
        if threads:
            return threads[0].frames
    return []


def parse_faulthandler(text: str, main_tid: int = 0) -> list[ThreadLook]:
    """Parse a dump of all threads, the main one first.

    main_tid is the main thread's id (the pid); the others read 0. Other text around the dump is passed over, threads
    without Python frames are left out.
    """
    threads: list[tuple[str, list[Frame]]] = []
    frames: list[Frame] | None = None
    for line in text.splitlines():
        head = _THREAD.match(line) or _STACK.match(line)
        if head is not None:
            frames = []
            threads.append(((head[1] or "") if head.re is _THREAD else "", frames))
        elif match := _FRAME.match(line):
            if frames is not None and len(frames) < MAX_FRAMES:
                frames.append(Frame(match[3], match[1], int(match[2]) if match[2].isdigit() else 0))
        elif line.strip() and not line.startswith("  "):
            frames = None  # Other text, 3.14's C stack among it.
    # The main thread is last even if it shows no frame.
    looks = [
        ThreadLook(tid=main_tid if is_last else 0, name=name, is_main=is_last, frames=frames)
        for is_last, (name, frames) in zip([False] * (len(threads) - 1) + [True], threads, strict=False)
        if frames
    ]
    return sorted(looks, key=lambda look: not look.is_main)


# py-spy -------------------------------------------------------------------------------------------------------------
# py-spy, run as a program: found, bounded in time, its JSON parsed.
#
# Always `--nonblocking`: a rank is never paused for a look, and a stopped process or one in state D would block py-spy
# itself. Only `native` needs a pause (py-spy refuses both together), and is for a process that runs or sleeps.


TIMEOUT_S = 2.0
NATIVE_S = 20.0
"""With native frames: a library's symbols take seconds to read."""
_RETRIES = 2
_RETRY_GAP_S = 0.02
_OUTPUT_CHARS = 4 << 20

NOT_INSTALLED = "py-spy is not installed"
REFUSED = "ptrace refused"
GONE = "the process is gone"
HEADLESS = "py-spy saw no frames of the main thread"
"""It drops frames that it fails to copy: those of a file whose path isn't UTF-8, or of a stack that just changes."""
GAPS = "py-spy dropped frames of the main thread"
"""The same, of some of them."""
_OUTERMOST = ("<module>", "_run_module_as_main")
"""What every main thread began with: a script, or `-m`."""
NO_PYTHON = "no Python interpreter found in it"

_found: list[str] = []
_unreaped: list[subprocess.Popen[bytes]] = []


class SpyDump(NamedTuple):
    """What one run of py-spy gave."""

    threads: list[ThreadLook]
    text: str
    """Its JSON, or what it said instead."""
    trouble: str
    """Empty where there are stacks, the main thread's among them."""


def find_pyspy() -> str:
    """The py-spy that came with guardrun, else PATH's; empty where there is none. Found once."""
    if not _found:
        beside = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
        path = os.pathsep.join([*beside, os.environ.get("PATH", "")])
        _found.append(shutil.which("py-spy", path=path) or "")
    return _found[0]


def parse_pyspy(text: str, pid: int) -> list[ThreadLook]:
    """Parse the output of `py-spy dump --json`: threads with Python frames, pid's main thread first.

    Raises ValueError where it is no such JSON.
    """
    data = json.loads(text)
    if not isinstance(data, list):
        raise ValueError("py-spy's JSON holds no list of threads")
    items = [item for item in data if isinstance(item, dict)]
    main = _find_main(items, pid)
    threads = [_parse_thread(item, pid, item is main) for item in items]
    return sorted((thread for thread in threads if thread.frames), key=lambda thread: not thread.is_main)


def _find_main(items: list[dict[str, Any]], pid: int) -> dict[str, Any] | None:
    """The main thread: by its id, else by its name, else the oldest, which py-spy gives last.

    Before Python 3.11 --nonblocking shows no ids; in another pid namespace none is the pid; names are missing without
    `import threading`.
    """
    by_id = [item for item in items if item.get("os_thread_id") == pid]
    by_name = [item for item in items if item.get("thread_name") == "MainThread"]
    unnamed = [item for item in items if not item.get("thread_name") and item.get("os_thread_id") in (None, pid)]
    return next(iter([*by_id, *by_name, *unnamed[-1:]]), None)


def _parse_thread(item: dict[str, Any], pid: int, is_main: bool) -> ThreadLook:
    tid = item.get("os_thread_id")
    name = str(item.get("thread_name") or "")
    return ThreadLook(
        tid=tid if isinstance(tid, int) else pid if is_main else 0,
        name=name,
        is_main=is_main,
        owns_gil=bool(item.get("owns_gil")),
        frames=[
            Frame(str(frame.get("name", "")), str(frame.get("filename", "")), int(frame.get("line") or 0))
            for frame in (item.get("frames") or [])[:MAX_FRAMES]
        ],
    )


def dump_pyspy(pid: int, *, timeout_s: float = TIMEOUT_S, native: bool = False, program: str | None = None) -> SpyDump:
    """Dump a process's Python stacks. All tries together take timeout_s at most.

    A stack that changes while it is copied can fail to parse: then it tries again, twice.
    """
    program = find_pyspy() if program is None else program
    if not program:
        return SpyDump([], "", NOT_INSTALLED)
    deadline = time.monotonic() + timeout_s
    dump = SpyDump([], "", "no time was left")
    for attempt in range(1 + _RETRIES):
        if attempt:
            time.sleep(_RETRY_GAP_S)
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        dump = _run(program, pid, left_s, native)
        if dump.trouble in ("", REFUSED, GONE, NO_PYTHON, NOT_INSTALLED):
            break
    return dump


def _run(program: str, pid: int, timeout_s: float, native: bool) -> SpyDump:
    _reap()
    mode = "--native" if native else "--nonblocking"
    try:
        process = subprocess.Popen(
            [program, "dump", "--json", mode, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
    except OSError as error:
        return SpyDump([], "", NOT_INSTALLED if isinstance(error, FileNotFoundError) else f"py-spy: {error}")
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_program(process)
        return SpyDump([], "", f"py-spy took longer than {timeout_s:.1f} s")
    text = out.decode("utf-8", "replace")[:_OUTPUT_CHARS]
    if process.returncode != 0:
        said = err.decode("utf-8", "replace").strip()
        return SpyDump([], said, explain_failure(said))
    try:
        threads = parse_pyspy(text, pid)
    except (ValueError, TypeError, AttributeError) as error:
        return SpyDump([], text, f"py-spy's output is not understood: {error}")
    main = next((thread for thread in threads if thread.is_main), None)
    return SpyDump(threads, text, HEADLESS if main is None else GAPS if has_gaps(main.frames) else "")


def has_gaps(frames: list[Frame]) -> bool:
    """Whether a main thread's stack, innermost first, lacks the user's code, and its beginning."""
    if len(frames) >= MAX_FRAMES or any(is_users(frame) for frame in frames):
        return False
    return bool(frames) and frames[-1].function not in _OUTERMOST


def explain_failure(said: str) -> str:
    """One phrase for what py-spy wrote to stderr (0.3 and 0.4's wording)."""
    lower = said.lower()
    if "permission denied" in lower or "operation not permitted" in lower:
        return REFUSED
    if "no such process" in lower or "check that the process is running" in lower:
        return GONE
    if "failed to find python version" in lower or "failed to find a python" in lower:
        return NO_PYTHON
    first = said.splitlines()[0] if said else "no word"
    return f"py-spy failed: {first.removeprefix('Error: ')[:200]}"


def end_program(process: subprocess.Popen[bytes], wait_s: float = 0.5) -> None:
    """Kill it, and wait for its end a moment: with its target it may be stuck in the kernel, for good."""
    process.kill()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        _unreaped.append(process)  # Reaped whenever it ends.


def _reap() -> None:
    for process in list(_unreaped):
        if process.poll() is not None and process in _unreaped:
            _unreaped.remove(process)
