"""torch's own worker server: threads in C++ that tell what the flight recorder has, whatever holds the GIL.

Started by the hooks' thread once the supervisor asks for it, on a Unix socket in the run's folder: it has eight idle
threads at least. What would make it a danger to training:

- It ends the process (an uncaught exception in its thread) where it can't start its threads, so there must be plenty
  of room for them; and where it accepts a connection on a descriptor that the script has closed. So the calls page
  names descriptor and inode, and nobody connects before having seen that they are still one (supervisor/collect).
- Its destructor waits and writes: it is never destroyed. Its threads end with the process.
- It logs a line when it is made: torch's log level is raised for that moment.

Where it can't be had, torch's own dump is: its monitor of NCCL opens a named pipe, and dumps when somebody writes into
it. That monitor ends the process where it can't make the pipe. So it is told to only where it is needed, and where a
pipe has just been made at that very place.

Where torch waits for NCCL itself (TORCH_NCCL_BLOCKING_WAIT), no watchdog takes events from the recorder's entries
before they are freed: whoever asks for these reads freed memory. Then nobody does.
"""

from __future__ import annotations

import os
import signal
import sys

from guardrun.hooks.wire.calls_page import pipe_name, recorder_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from guardrun.hooks.calls.collective_calls import CallsPage
    from guardrun.hooks.rank.rank import Rank

MAX_PATH_BYTES = 107
"""Of a Unix socket (man 7 unix)."""
SPARE_TASKS = 256
"""What must be left for others when all ranks of the node have started their threads."""
ENOUGH_TASKS = 16384
"""A user's limit from which on nobody counts."""
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
MAX_ENTRIES = 12_000
"""A dump's JSON is made in the rank's memory, some kilobytes an entry, and read up to 8 MB."""
ERROR_LEVEL = 2
"""c10's log levels: INFO 0, WARNING 1, ERROR 2."""
BLOCKING_VARIABLES = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
PIPE_VARIABLE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_TRUE = ("y", "yes", "1", "t", "true")
"""getCvarBool of torch/csrc/distributed/c10d/Utils.hpp, in lower case."""
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}

_server: Any = None
_has_prepared = False


def start(rank: Rank, calls: CallsPage) -> None:
    """Start the server, once; where it can't be, the calls page says why. The hooks' thread calls it. Never raises."""
    global _server
    if _server is not None:
        return
    _server = False
    try:
        trouble = find_recorder_trouble() or find_obstacle()
        if not trouble:
            path = os.path.join(rank.sockets, recorder_name(rank.attempt, rank.global_rank))
            with rank.import_lock:  # A child that is forked meanwhile would keep the socket.
                _server = _make_server(path)
                fd, inode = find_listener(path)
                rank.hold_recorder(fd)
            calls.set_recorder(fd, inode)
            return
    except Exception as error:
        trouble = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    calls.set_recorder(-1, 0, trouble)


def prepare(rank: Rank, calls: CallsPage, module: Any) -> None:
    """A group is about to be made (module: distributed_c10d): see how its calls can be read. Never raises."""
    global _has_prepared
    try:
        if any(os.environ.get(name, "").lower() in _TRUE for name in BLOCKING_VARIABLES):
            calls.forbid_entries("torch waits for NCCL by itself (TORCH_NCCL_BLOCKING_WAIT)")
        if _has_prepared:
            return
        _has_prepared = True
        if getattr(module, "_NCCL_AVAILABLE", False) and not find_recorder_trouble() and find_obstacle():
            _prepare_pipe(rank, calls)
    except Exception as error:
        rank.fail("recorder", error)


def _prepare_pipe(rank: Rank, calls: CallsPage) -> None:
    """Have torch open a pipe, unless the user has it open one; torch appends the rank to both names."""
    prefix = next((os.environ[name] for name in DUMP_VARIABLES if os.environ.get(name)), "")
    if PIPE_VARIABLE in os.environ or not prefix:
        return
    stem = os.path.join(rank.sockets, pipe_name(rank.attempt, rank.global_rank))
    path = f"{stem}{rank.global_rank}.pipe"
    if os.path.exists(path):
        os.unlink(path)  # Of an earlier Python of the same rank.
    os.mkfifo(path, 0o600)
    os.environ[PIPE_VARIABLE] = stem
    calls.set_pipe(stem, prefix)


def find_recorder_trouble() -> str:
    """Why there is nothing to be asked for; empty where there is."""
    for name in SIZE_VARIABLES:
        size = os.environ.get(name, "")
        if size == "0":
            return f"the flight recorder is off ({name}=0)"
        if size.isdigit() and int(size) > MAX_ENTRIES:
            return f"the flight recorder is too large to be asked for all it has ({name}={size})"
    return ""


def find_obstacle() -> str:
    """Why the server can't or should not be started; empty where it should."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if not hasattr(c10d, "_WorkerServer"):
        return "this torch has no worker server"
    # cpp-httplib's CPPHTTPLIB_THREAD_POOL_COUNT, and the thread that listens.
    threads = max(8, (os.cpu_count() or 1) - 1) + 1
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    if not has_room(threads * local_ranks + SPARE_TASKS):
        return "there is too little room for its threads"
    return ""


def has_room(threads: int) -> bool:
    """Say whether so many more threads will certainly be had."""
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return False
    if _read("/proc/sys/vm/overcommit_memory") == "2":
        return False
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    is_limited = limit not in (resource.RLIM_INFINITY, -1) and limit < ENOUGH_TASKS and os.geteuid() != 0
    if is_limited and _count_tasks(os.getuid()) + threads > limit:
        return False
    return all(int(_read(f"{folder}/pids.current") or 0) + threads <= most for folder, most in _pid_limits())


def _pid_limits() -> list[tuple[str, int]]:
    """The cgroups of this process that limit how many tasks there are, and how many they allow."""
    found: dict[str, int] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        root = "/sys/fs/cgroup/pids" if controllers else "/sys/fs/cgroup"
        while True:
            most = _read(f"{root}{path.rstrip('/')}/pids.max")
            if most.isdigit():
                found[f"{root}{path.rstrip('/')}"] = int(most)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return list(found.items())


def _count_tasks(uid: int) -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            status = _read(f"/proc/{entry.name}/status")
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if fields.get("Uid", "").split("\t")[0] == str(uid):
                count += int(fields.get("Threads", "1"))
    return count


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _make_server(path: str) -> Any:
    """Make the server: quietly, its threads deaf to signals, never to be destroyed. Raises where it can't be."""
    import ctypes

    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError("the socket folder's path is too long")
    torch = sys.modules["torch"]
    library = os.path.join(os.path.dirname(str(torch.__file__)), "lib", "libc10.so")
    # ValueError where torch logs by another library: then it could not be made quietly.
    level = ctypes.c_int.in_dll(ctypes.CDLL(library, os.RTLD_NOLOAD | os.RTLD_NOW), "FLAGS_caffe2_log_level")
    try:
        os.unlink(path)  # Of an earlier Python of the same rank.
    except FileNotFoundError:
        pass
    before = level.value
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    level.value = max(before, ERROR_LEVEL)
    try:
        server = sys.modules["torch._C._distributed_c10d"]._WorkerServer(path)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    finally:
        level.value = before
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return server


def find_listener(path: str) -> tuple[int, int]:
    """Find the descriptor in this process that listens on a Unix socket's path, and its inode. Raises OSError."""
    import _socket

    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            found = _socket.socket(fileno=fd)
        except OSError:
            continue
        try:
            listens = found.getsockopt(_socket.SOL_SOCKET, _socket.SO_ACCEPTCONN)
            if listens and found.family == _socket.AF_UNIX and found.getsockname() == path:
                return fd, os.fstat(fd).st_ino
        except OSError:
            continue
        finally:
            found.detach()
    raise OSError("its socket was not found")
