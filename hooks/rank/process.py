"""What the kernel is told about a rank, what becomes of its forks, and how it survives os.exec.

- PR_SET_PDEATHSIG: the rank dies with the launcher that started it.
- PR_SET_PTRACER: Yama lets the launcher's descendants, and so py-spy, read this process.
- fork: the child is no rank. It shares the board's memory and the queue's lock: both are swapped for private ones.
- exec: the process stays the rank, so its hooks have to come along.

Python 3.12 and newer warn when a process with several threads forks. The hooks' threads would make that warning
(an error under -W error) appear in scripts that have a single one. It is kept quiet for exactly that case: no thread
but the main one and ours. Our thread holds no lock that a child could need: imports, the one such place, are fenced
by `Rank.import_lock`, and the C library's allocator takes care of itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from _thread import get_ident

from guardrun.hooks.rank import rank as _rank
from guardrun.hooks.wire.calls_page import RECORDER_THREAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from guardrun.hooks.rank.rank import Rank

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61

FORK_PATIENCE_S = 1.0
"""How long a fork waits for the hooks' thread to finish an import; it takes some 30 ms, once."""


def start(rank: Rank) -> None:
    """Name the launcher to the kernel and prepare for forks and execs."""
    launcher_pid = int(str(rank.settings["launcher_pid"]))
    bind_to_launcher(launcher_pid)
    outlive(rank.settings.get("notices"))
    _handle_forks(rank)
    _handle_execs(rank)


def outlive(notices: object) -> None:
    """Let signals that warn of the job's end not end this process: some set-ups of Slurm send them to everybody.

    notices: their numbers. Ignored, so that data workers and other children are not ended either.
    """
    for signum in notices if isinstance(notices, list) else ():
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, signal.SIG_IGN)


def bind_to_launcher(launcher_pid: int) -> None:
    """Die with the launcher where it is the parent, and let its descendants look at this process."""
    prctl = ctypes.CDLL(None).prctl
    if os.getppid() == launcher_pid:
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL.value), 0, 0, 0)
        if os.getppid() != launcher_pid:  # It died before it was named: no signal will come.
            os.kill(os.getpid(), signal.SIGKILL)
    prctl(PR_SET_PTRACER, ctypes.c_ulong(launcher_pid), 0, 0, 0)  # EINVAL where there is no Yama: nothing to allow.


def _handle_forks(rank: Rank) -> None:
    holders: set[int] = set()

    def before() -> None:
        if rank is not _rank.active:
            return
        try:
            if rank.import_lock.acquire(timeout=FORK_PATIENCE_S):
                holders.add(get_ident())
            if rank.forks is not None:
                rank.forks.before_fork()
            if sys.version_info >= (3, 12):
                _quiet_fork_warning()
        except Exception as error:
            rank.fail("fork", error)

    def after_in_parent() -> None:
        if get_ident() in holders:
            holders.discard(get_ident())
            rank.import_lock.release()

    def after_in_child() -> None:
        holders.clear()
        if rank is _rank.active:
            rank.become_child()

    os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


OWN_THREADS = {"none": 0}
"""Filled by the hooks' thread: how many native threads of this process are the hooks'."""


class _ForkMessage:
    """Stands for a warning filter's compiled pattern: matches where the fork would not have warned without us."""

    def match(self, text: str) -> bool:
        if not (text.startswith("This process (pid=") and "is multi-threaded, use of" in text):
            return False
        try:
            return len(os.listdir("/proc/self/task")) - sum(OWN_THREADS.values()) - _recorder_threads() <= 1
        except OSError:
            return False


def _recorder_threads() -> int:
    """How many threads torch's worker server has, where the hooks have started one."""
    rank = _rank.active
    if rank is None or rank.recorder_fd < 0:
        return 0
    return sum(_thread_name(tid) == RECORDER_THREAD for tid in os.listdir("/proc/self/task"))


def _thread_name(tid: str) -> str:
    with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


_FORK_FILTER: tuple[Any, ...] = ("ignore", _ForkMessage(), DeprecationWarning, None, 0)


def _quiet_fork_warning() -> None:
    """Put our filter first: at each fork, since scripts reset filters, and since most never fork."""
    import warnings

    filters: list[tuple[Any, ...]] = warnings.filters  # type: ignore[assignment]  # declared read-only in typeshed
    if filters and filters[0] is _FORK_FILTER:
        return
    filters[:] = [_FORK_FILTER, *(entry for entry in filters if entry is not _FORK_FILTER)]
    mutated = getattr(warnings, "_filters_mutated", None) or getattr(warnings, "_filters_mutated_lock_held", None)
    if mutated is not None:
        mutated()


def _handle_execs(rank: Rank) -> None:
    """Let a script that runs itself anew by os.exec… stay a watched rank."""
    execv, execve = os.execv, os.execve

    def is_rank() -> bool:
        return rank is _rank.active and os.getpid() == rank.pid

    def execv_as_rank(path: Any, argv: Any, /) -> Any:
        if not is_rank():
            return execv(path, argv)
        return execve(path, argv, with_hooks(os.environ, rank.settings))

    def execve_as_rank(path: Any, argv: Any, env: Mapping[Any, Any]) -> Any:
        if not is_rank():
            return execve(path, argv, env)
        return execve(path, argv, with_hooks(env, rank.settings))

    for original, ours in ((execv, execv_as_rank), (execve, execve_as_rank)):
        ours.__name__ = ours.__qualname__ = original.__name__
        ours.__doc__ = original.__doc__
    _replace("execv", execv, execv_as_rank)
    _replace("execve", execve, execve_as_rank)


def _replace(name: str, original: Callable[..., Any], ours: Callable[..., Any]) -> None:
    setattr(os, name, ours)
    if original in os.supports_fd:
        os.supports_fd.add(ours)


def with_hooks(env: Mapping[Any, Any], settings: dict[str, object]) -> dict[Any, Any]:
    """The environment with what sitecustomize takes away; env itself where it can't be read as text."""
    changed = dict(env)
    before = changed.get("PYTHONPATH")
    if any(isinstance(key, bytes) for key in changed) or not isinstance(before, str | None):
        return changed
    inject = str(settings["inject"])
    own = {key: value for key, value in settings.items() if key != "inject"}
    changed["GUARDRUN_HOOKS"] = json.dumps({**own, "pythonpath": before})
    # An empty entry would be the working folder, an empty variable is none.
    changed["PYTHONPATH"] = inject + os.pathsep + before if before else inject
    return changed
