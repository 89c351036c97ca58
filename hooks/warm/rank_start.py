"""What a fork of the warm process does to look as if it had been executed: the kernel's side, then Python's.

Session, descriptors, environment (Python's, the C library's, and what /proc shows), command line, priority; standard
streams, sys.argv, exit functions, generators of random numbers. Everything else is as the interpreter made it: the fork
goes on inside of `sitecustomize`, so `__main__` and what follows are the interpreter's own doing.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in no stub
import atexit
import ctypes
import gc
import io
import os
import sys
import weakref
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    from guardrun.hooks.warm.stash import Stash

PR_SET_MM, PR_SET_MM_MAP = 35, 14
"""linux/prctl.h"""
SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
IOPRIO_WHO_PROCESS, IOPRIO_IDLE = 1, 3 << 13
"""linux/ioprio.h"""
OWN_SIGNALS = (_signal.SIGPIPE, _signal.SIGXFSZ)
"""Python ignores them, whatever it was started with."""
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.sbrk.restype = ctypes.c_void_p
LIBC.sbrk.argtypes = (ctypes.c_ssize_t,)

_KEPT: list[Any] = []
"""What must not be destroyed here: /proc shows it."""


class MemoryMap(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
                "arg_start", "arg_end", "env_start", "env_end",
            )
        ),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_int32),
    )  # fmt: skip


def show(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let /proc/PID/cmdline and environ show these. Raises OSError where this kernel lets nobody (no PR_SET_MM_MAP)."""
    arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    text = ctypes.create_string_buffer(arguments + variables)
    with open("/proc/self/stat", "rb") as file:
        words = file.read().rpartition(b") ")[2].split()
    numbers = [int(word) if word.isdigit() else 0 for word in words]  # from the third field on, man 5 proc
    begin = ctypes.addressof(text)
    layout = MemoryMap(
        start_code=numbers[23],
        end_code=numbers[24],
        start_stack=numbers[25],
        start_data=numbers[42],
        end_data=numbers[43],
        start_brk=numbers[44],
        brk=LIBC.sbrk(0),
        arg_start=begin,
        arg_end=begin + len(arguments),
        env_start=begin + len(arguments),
        env_end=begin + len(arguments) + len(variables),
        exe_fd=-1,
    )
    if LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(layout), ctypes.c_ulong(ctypes.sizeof(layout)), 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")
    _KEPT.append(text)


def can_show() -> bool:
    """Whether this kernel lets a process show what was not executed; tried in a child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            show(["shown"], {})
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


# Priority -----------------------------------------------------------------------------------------------------------


class Priority:
    """The lowest that a process can come back from: its forks have that with which it began."""

    def __init__(self) -> None:
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._score = _read("/proc/self/oom_score_adj")

    def lower(self) -> None:
        """The disk's idle class, first in line where memory ends, and, where that can be undone, nice 19."""
        _set_disk_class(IOPRIO_IDLE)
        if self._score:
            _write("/proc/self/oom_score_adj", "1000")
        if _can_raise(self._nice):
            os.setpriority(os.PRIO_PROCESS, 0, 19)

    def restore(self) -> None:
        """In a fork. Raises OSError where it can't."""
        _set_disk_class(0)
        if self._score and not _write("/proc/self/oom_score_adj", self._score):
            raise OSError("oom_score_adj can't be put back")
        os.setpriority(os.PRIO_PROCESS, 0, self._nice)


def _can_raise(nice: int) -> bool:
    """Whether a process of ours may come back from nice 19; tried in a child."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _set_disk_class(value: int) -> None:
    number = SYS_IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        LIBC.syscall(ctypes.c_long(number), IOPRIO_WHO_PROCESS, 0, value)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write(path: str, text: str) -> bool:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True


# Becoming a rank ----------------------------------------------------------------------------------------------------


def become(command: Sequence[str], environment: Mapping[str, str], streams: Sequence[int], kept: int) -> None:
    """Be the process that an exec of this command line would have made, up to `sitecustomize`.

    streams: descriptors that are to be 0, 1 and 2; all others but kept are closed. Raises OSError.
    """
    os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != kept:
            with suppress(OSError):  # the listing's own
                os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    show(command, environment)
    # In place: others, a list of arguments that a module took before, may know them.
    words = list(command)
    sys.argv[1:] = words[len(sys.orig_argv) - len(sys.argv) + 1 :]
    sys.orig_argv[:] = words
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_stream(number, getattr(sys, name))


def set_signals(ignored: Collection[int], blocked: Collection[int]) -> None:
    """Have signals as an exec by the launcher leaves them: these are ignored, and no others; these are blocked."""
    for signum in _signal.valid_signals():
        is_ignored = _signal.getsignal(signum) == _signal.SIG_IGN
        if signum not in OWN_SIGNALS and is_ignored != (signum in ignored):
            default = _signal.default_int_handler if signum == _signal.SIGINT else _signal.SIG_DFL
            try:
                _signal.signal(signum, _signal.SIG_IGN if signum in ignored else default)
            except ValueError:  # not the main thread's: an exec follows, which goes by the kernel's side
                LIBC.signal(signum, ctypes.c_void_p(int(signum in ignored)))
    _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)


def forget(stash: Stash, unseeded: Sequence[Any]) -> None:
    """Python's side: no exit functions, no modules, other random numbers, but what a fresh interpreter has."""
    atexit._clear()  # Modules ask again when they are imported.
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    for generator in unseeded:
        generator.seed()
    stash.begin()
    gc.enable()


def _open_stream(number: int, stream: Any) -> None:
    """Make a standard stream again, for what its descriptor is now, in the same object; as pylifecycle.c does."""
    if stream is None:
        return
    mode = "r" if number == 0 else "w"
    buffer: Any
    if number == 0:
        buffer = open(number, "rb", -1, closefd=False)  # noqa: SIM115
        raw = buffer.raw
    else:  # Ranks are started with -u.
        buffer = raw = open(number, "wb", 0, closefd=False)  # noqa: SIM115
    raw.name = f"<{('stdin', 'stdout', 'stderr')[number]}>"
    encoding, errors = stream.encoding, stream.errors
    io.TextIOWrapper.__init__(
        stream,
        buffer,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=False,
        write_through=True,
    )
    stream.mode = mode
