"""A Python that has imported what launchers and ranks import, and forks them: `client.py` starts one a test process.

Requests come as JSON with descriptors over a socket (SOCK_SEQPACKET), one at a time; the answer is the new process's
pid. That is a child of the test process, as the server is one, and waited for as any other. Ends when the socket is
closed.

A guardrun that was forked here forks its own children, too: its supervisor and its ranks (`_fork_in_place`). Whatever
no fork can stand in for is started as ever.

`server.py --become GUARDRUN ARGUMENT…` becomes that guardrun itself, where somebody else starts it (Slurm, say).
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    PATH = sys.path[1:]
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tests.support.forkserver.stash import Recorder, Stash

FRESH = list(sys.modules)
RECORDER = Recorder()
if __name__ == "__main__":  # What comes now is found in children as if they had imported it themselves.
    RECORDER.begin()

# ruff: noqa: E402
import contextlib
import ctypes
import gc
import importlib
import json
import pkgutil
import select
import signal
import socket
import subprocess
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from tests.support.forkserver import pages, program
from tests.support.forkserver.process import Origin, Request, become, can_show, place_descriptors
from tests.support.forkserver.started import Started, current_umask, is_open
from tests.support.leaks import read_fds

IMPORTED = (
    "torch", "torch.distributed.run", "torch.nn.parallel", "torch.utils.data", "torch.distributed.checkpoint",
    "torch._dynamo", "torch.distributed.fsdp", "safetensors.torch",
    "numpy", "zmq", "msgspec", "structlog", "rich.console", "rich.table", "rich.live", "psutil", "pynvml",
    "argparse", "asyncio", "tempfile", "uuid", "zipfile", "multiprocessing", "concurrent.futures",
)  # fmt: skip
PACKAGES = ("guardrun.launcher", "guardrun.supervisor", "guardrun.slurm", "guardrun.systemd")
"""All of their modules, too."""
FOR_ONE = (
    "torch", "torch.distributed.run", "numpy",
    "guardrun.launcher.run.launch", "guardrun.supervisor.daemon.daemon", "guardrun.supervisor.fleet.follower.follower",
)  # fmt: skip
"""What a single guardrun is worth: the rest is imported by those who need it."""
GUARDRUN, TESTS = "guardrun", "tests"
NAMESPACES = ("uts", "net", "mnt")
READ_AGAIN: dict[str, Callable[[Any], object]] = {
    "torch.distributed": lambda module: module.set_debug_level_from_env(),
}
"""What a module reads from the environment when it is imported, and how to have it do so again."""
MAX_REQUEST_BYTES = 1 << 20
SYS_CLONE3, PR_GET_TID_ADDRESS = 435, 40
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
"""linux/sched.h"""
LIBC = ctypes.PyDLL(None, use_errno=True)
"""Called with the GIL held."""
LIBC.syscall.restype = ctypes.c_long
LOOKUP_S = 2.0
"""For the name of this host, in a child; twice that in the next one, on a machine that is too busy for it."""


def import_all(names: Sequence[str] = IMPORTED, packages: Sequence[str] = PACKAGES) -> None:
    """Import what is to be there already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            importlib.import_module(name)
        for package in packages:
            folder = importlib.import_module(package)
            for found in pkgutil.walk_packages(folder.__path__, f"{package}."):
                if not found.name.endswith("__main__"):
                    importlib.import_module(found.name)


class Forker:
    """Forks processes, here or in a process that was forked here."""

    def __init__(self, origin: Origin, stash: Stash, environment: dict[str, str]) -> None:
        """environment: as it was before anything was imported."""
        self._origin, self._stash, self._environment = origin, stash, environment
        self._execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def serve(self, connection: socket.socket) -> None:
        """Answer requests until there is nobody to ask."""
        is_able = can_show()
        while True:
            text, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 16)
            if not text:
                return
            asked = json.loads(text)
            pid = self._fork_for_parent(asked, descriptors) if is_able else program.UNABLE
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())

    def _fork_for_parent(self, asked: dict[str, Any], descriptors: list[int]) -> int:
        """Fork a child of our parent, and wait until it shows what it is to show. Its pid, or UNABLE."""
        shown, ready = os.pipe()
        pid = fork_sibling()
        if pid == 0:
            with no_way_back():
                self._become_asked(asked, descriptors, ready)
        os.close(ready)
        os.read(shown, 1)
        os.close(shown)
        return pid

    def _become_asked(self, asked: dict[str, Any], descriptors: list[int], ready: int) -> None:
        parsed = program.parse_command(asked["command"], asked["environment"])
        assert parsed is not None
        if asked["namespaces_of"]:
            enter_namespaces(asked["namespaces_of"])
        request = Request(
            program=parsed,
            environment=asked["environment"],
            cwd=asked["cwd"],
            umask=asked["umask"],
            is_new_session=asked["is_new_session"],
            descriptors=dict(zip(asked["descriptors"], descriptors, strict=True)),
            ready=ready,
        )
        if asked["has_server"]:
            request.environment[program.GIVEN_SERVER] = self._fork_server(request)
            become(request, self._origin, self._stash, forget=(GUARDRUN, TESTS))
        if asked["forks"]:
            self._fork_children()
        become(request, self._origin, self._stash)

    def _fork_server(self, request: Request) -> str:
        """Have a server among one's children: what that forks can be a child of nobody else's. What names it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.fork()
        if server == 0:
            place_descriptors({number: number for number in range(3)}, {theirs.fileno()})
            self.serve(theirs)
            os._exit(0)
        theirs.close()
        number = ours.detach()
        request.kept.add(number)
        return f"{number} {server}"

    def become(self, command: list[str]) -> NoReturn:
        """Be that program in this process, as it was started."""
        if not can_show():
            os.execv(command[0], command)
        parsed = program.parse_command(command, os.environ)
        assert parsed is not None, command
        request = Request(
            program=parsed,
            environment=self._environment,
            cwd=os.getcwd(),
            umask=current_umask(),
            is_new_session=False,
            descriptors={number: number for number in range(3) if is_open(number)},
            ready=os.open(os.devnull, os.O_RDONLY),
        )
        self._fork_children()
        become(request, self._origin, self._stash)

    def _fork_children(self) -> None:
        """From now on, what this process starts."""

        def execute_child(popen: subprocess.Popen[Any], *arguments: Any) -> None:
            if not self._fork_in_place(popen, arguments):
                self._execute(popen, *arguments)

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]

    def _fork_in_place(self, popen: subprocess.Popen[Any], arguments: tuple[Any, ...]) -> bool:
        """Be asked for a child process by subprocess; False where it is to be started as ever."""
        started = Started(*arguments)
        environment = dict(os.environ) if started.env is None else started.env
        if threading.current_thread() is not threading.main_thread():
            return False  # Nobody else's thread lives on in a child, and the main thread is to be the main thread.
        if not started.is_plain() or not all(isinstance(value, str) for value in environment.values()):
            return False
        parsed = program.parse_command(started.args, environment)
        if parsed is None or not program.is_alike(environment, self._environment):
            return False
        is_daemon = parsed.arguments[-1:] == ["guardrund"]
        is_preflight = parsed.arguments[-1:] == ["guardrun-preflight"]
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        shown, ready = os.pipe()
        before = read_fds()
        pid = fork_beside_threads()
        if pid == 0:
            with no_way_back():
                # libuv, below torch's store, makes itself a new pipe in a child, closed in the child's children.
                born = {number for number, target in read_fds().items() if before.get(number) != target}
                if not is_preflight:  # The processes that try its devices import torch, and nothing else does.
                    subprocess.Popen._execute_child = self._execute  # type: ignore[attr-defined]
                request = Request(
                    program=parsed,
                    environment=environment,
                    cwd=os.fspath(started.cwd or os.getcwd()),
                    umask=current_umask(),
                    is_new_session=started.start_new_session,
                    descriptors=started.descriptors(),
                    kept=born,
                    ready=ready,
                )
                become(request, self._origin, self._stash, forget=() if is_daemon else (GUARDRUN,))
        os.close(ready)
        os.read(shown, 1)
        os.close(shown)
        popen.pid = pid
        popen._child_created = True  # type: ignore[attr-defined]
        started.close_child_ends(popen)
        return True


@contextlib.contextmanager
def no_way_back() -> Iterator[None]:
    """In a child: whatever keeps it from becoming its program ends it. It must not go on as a second parent."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


class _CloneArgs(ctypes.Structure):
    """struct clone_args of linux/sched.h, as first defined."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    )


def fork_sibling() -> int:
    """Fork a process that is a child of this one's parent; 0 in that process, UNABLE where the kernel lets nobody.

    A child's orphaned child is one, too, at twice the price, half of it for a process that does nothing. The C library
    does not hear of it, so nothing here may have threads; where it keeps the thread's number it is told by the kernel.
    """
    number = ctypes.c_void_p()
    LIBC.prctl(PR_GET_TID_ADDRESS, ctypes.byref(number), 0, 0, 0)
    flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    arguments = _CloneArgs(flags=flags, child_tid=number.value or 0)
    # As os.fork does.
    LIBC.PyOS_BeforeFork()
    pid = int(LIBC.syscall(SYS_CLONE3, ctypes.byref(arguments), ctypes.c_size_t(ctypes.sizeof(arguments))))
    if pid == 0:
        LIBC.PyOS_AfterFork_Child()
    else:
        LIBC.PyOS_AfterFork_Parent()
    return pid


def fork_beside_threads() -> int:
    """Fork, until there is a child that can look up names: nobody in a child lets go of what another thread held.

    glibc's resolver has a lock that no fork resets. The thread of torch's store holds it now and then, for the name of
    whoever has connected; a child of that moment would stand still in its first connection, for ever.
    """
    limit_s = LOOKUP_S
    while True:
        told, tell = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            os.close(told)
            with contextlib.suppress(OSError):
                socket.getaddrinfo("localhost", None)
            os.write(tell, b"1")
            os.close(tell)
            return 0
        os.close(tell)
        is_free = bool(select.select([told], [], [], limit_s)[0])
        os.close(told)
        if is_free:
            return pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        limit_s *= 2


def enter_namespaces(pid: int) -> None:
    """Have the network, hostname and mounts that a process has, as by nsenter."""
    libc = ctypes.CDLL(None, use_errno=True)
    opened = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for descriptor in opened:
        if libc.setns(descriptor, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns({os.readlink(f'/proc/self/fd/{descriptor}')} of {pid})")
        os.close(descriptor)


def main() -> None:
    is_one = sys.argv[1] == program.BECOME
    environment = dict(os.environ)
    meta_path = [finder for finder in sys.meta_path if finder is not RECORDER]
    origin = Origin.take(path=PATH, meta_path=meta_path)
    from guardrun.hooks.startup.import_hooks import HOOKS

    gc.disable()  # Nothing is thrown away meanwhile.
    import_all(FOR_ONE, ()) if is_one else import_all()
    RECORDER.end()
    origin.meta_path = [finder for finder in origin.meta_path if finder in sys.meta_path]  # Some wait for one import.
    stash = Stash(RECORDER, FRESH, HOOKS, READ_AGAIN)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    stash.hide()
    if not is_one:  # For the few that one starts, it would take longer than they gain.
        gc.collect()
    gc.freeze()
    gc.enable()
    if not is_one:
        pages.collapse()
    forker = Forker(origin, stash, environment)
    if is_one:
        forker.become(sys.argv[2:])
    forker.serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
