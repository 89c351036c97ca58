"""Says what it is, from its first line on and after its imports, in `answers-ATTEMPT-RANK.json`; then trains.

Rank 1 of the first attempt kills itself once there is a file `go`.
"""

from __future__ import annotations

import sys

FIRST_MODULES = sorted(sys.modules)
FIRST_META_PATH = [
    type(finder).__name__ if not isinstance(finder, type) else finder.__name__ for finder in sys.meta_path
]

import os  # noqa: E402

FIRST_ENVIRON = dict(os.environ)


class Point:
    """Pickled by processes that are started in each of the three ways."""

    def __init__(self, x: int) -> None:
        self.x = x


def double(point: Point) -> Point:
    return Point(point.x * 2)


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        return f"error {error.errno}"


def status_lines(names: tuple[str, ...]) -> dict[str, str]:
    found = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines() if ":" in line)
    return {f"status.{name}": found.get(name, "").strip() for name in names}


def of_kernel() -> dict[str, object]:
    import resource
    import signal

    pid, stat = os.getpid(), read("/proc/self/stat").rpartition(") ")[2].split()
    answers: dict[str, object] = {
        "comm": read("/proc/self/comm"),
        "cmdline": read("/proc/self/cmdline").split("\0"),
        "environ": read("/proc/self/environ").split("\0"),
        "exe": os.readlink("/proc/self/exe"),
        "cwd": os.getcwd(),
        "root": os.readlink("/proc/self/root"),
        "is_leader": os.getpgid(0) == pid and os.getsid(0) == pid,
        "tty": stat[4],
        "nice": os.nice(0),
        "stat.priority": stat[15],
        "stat.threads": stat[17],
        "stat.policy": stat[38],
        "stat.exit_signal": stat[35],
        "parent": read(f"/proc/{os.getppid()}/cmdline").split("\0")[:3],
        "oom_score_adj": read("/proc/self/oom_score_adj"),
        "personality": read("/proc/self/personality"),
        "cgroup": read("/proc/self/cgroup"),
        "sched": str(os.sched_getscheduler(0)),
        "affinity": sorted(os.sched_getaffinity(0)),
        "fds": {n: os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in "012"},
        "fd_flags": {n: [__import__("fcntl").fcntl(int(n), c) for c in (1, 3)] for n in "012"},
        "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in ("mnt", "net", "pid", "user", "uts", "ipc")},
        "timerslack": read("/proc/self/timerslack_ns"),
        "coredump_filter": read("/proc/self/coredump_filter"),
        "umask": os.umask(0o077),
        "uids": [os.getresuid(), os.getresgid(), os.getgroups()],
        "itimers": [signal.getitimer(which) for which in (0, 1, 2)],
        "pending": sorted(signal.sigpending()),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "loginuid": read("/proc/self/loginuid"),
    }
    os.umask(int(str(answers["umask"])))
    import ctypes

    libc = ctypes.CDLL(None)
    number = ctypes.c_int()
    libc.prctl(2, ctypes.byref(number), 0, 0, 0)
    answers["pdeathsig"] = number.value
    libc.prctl(37, ctypes.byref(number), 0, 0, 0)
    answers["subreaper"] = number.value
    answers["dumpable"] = libc.prctl(3, 0, 0, 0, 0)
    answers["no_new_privs"] = libc.prctl(39, 0, 0, 0, 0)
    answers["ioprio"] = libc.syscall(252, 1, 0)
    libc.getenv.restype = ctypes.c_char_p
    for name in (*os.environ, "GUARDRUN_HOOKS", "GUARDRUN_WARM"):
        answers[f"getenv.{name}"] = str(libc.getenv(name.encode()))
    for name in dir(resource):
        if name.startswith("RLIMIT_"):
            answers[f"rlimit.{name}"] = resource.getrlimit(getattr(resource, name))
    for signum in range(1, 65):
        answers[f"signal.{signum}"] = str(signal.getsignal(signum)) if signum not in (32, 33) else ""
    answers |= status_lines(
        ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "SigPnd", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
         "NoNewPrivs",
         "Seccomp", "Seccomp_filters", "Cpus_allowed", "Mems_allowed", "Umask", "FDSize", "Groups", "CoreDumping",
         "THP_enabled",
         "Speculation_Store_Bypass", "SpeculationIndirectBranch", "TracerPid", "Uid", "Gid", "Kthread")
    )  # fmt: skip
    return answers


def of_interpreter() -> dict[str, object]:
    import atexit
    import gc
    import locale
    import threading
    import warnings

    main = sys.modules["__main__"]
    answers: dict[str, object] = {
        "modules": FIRST_MODULES,
        "environ_first": FIRST_ENVIRON,
        "main.names": sorted(name for name in vars(main) if name.startswith("__")),
        "main.file": main.__file__,
        "main.loader": type(main.__loader__).__name__,
        "main.package": str(main.__package__),
        "main.spec": str(main.__spec__ and main.__spec__.name),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "atexit": atexit._ncallbacks(),
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), gc.garbage],
        "threads": [(thread.name, thread.daemon) for thread in threading.enumerate()],
        "is_main": threading.current_thread() is threading.main_thread(),
        "ident": threading.main_thread().ident == threading.get_ident(),
        "native_id": threading.main_thread().native_id == os.getpid(),
        "warnings": [str(entry) for entry in warnings.filters],
        "locale": [locale.setlocale(kind) for kind in range(6)],
        "frames": len(list(iter_frames())),
        "hooks": [
            str(getattr(sys, name)).split(" at ")[0]
            for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook")
        ],
        "path": sys.path,
        "path_hooks": [str(hook).split(" at ")[0] for hook in sys.path_hooks],
        "monitoring": [sys.gettrace(), sys.getprofile()],
        "random_first": hash("x") != 0,
    }
    for name in sys.flags.__match_args__ if hasattr(sys.flags, "__match_args__") else ():
        answers[f"flags.{name}"] = getattr(sys.flags, name)
    for name in (
        "executable", "prefix", "exec_prefix", "base_prefix", "byteorder", "dont_write_bytecode", "pycache_prefix",
        "platlibdir",
        "float_repr_style", "maxsize", "warnoptions", "_xoptions", "hexversion", "api_version", "_git",
        "implementation", "_base_executable", "version",
    ):  # fmt: skip
        answers[f"sys.{name}"] = str(getattr(sys, name, None))
    for name in (
        "getrecursionlimit",
        "getswitchinterval",
        "getfilesystemencoding",
        "getfilesystemencodeerrors",
        "getdefaultencoding",
        "get_int_max_str_digits",
        "get_coroutine_origin_tracking_depth",
        "get_asyncgen_hooks",
        "getdlopenflags",
    ):
        answers[f"sys.{name}"] = str(getattr(sys, name)())
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        for part in ("encoding", "errors", "line_buffering", "write_through", "newlines", "mode", "closed", "name"):
            answers[f"{name}.{part}"] = getattr(stream, part)
        for part in ("seekable", "readable", "writable", "isatty", "fileno"):
            answers[f"{name}.{part}()"] = getattr(stream, part)()
        answers[f"{name}.kind"] = [
            type(stream).__name__,
            type(stream.buffer).__name__,
            stream is getattr(sys, f"__{name}__"),
        ]
        answers[f"{name}.raw"] = str(getattr(stream.buffer, "raw", stream.buffer)).split(" at ")[0]
    return answers


def iter_frames():
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def of_imports() -> dict[str, object]:
    import atexit
    import logging
    import warnings

    import numpy
    import torch

    answers: dict[str, object] = {
        "imported": sorted(sys.modules),
        "imported.order": list(sys.modules),
        "imported.atexit": atexit._ncallbacks(),
        "imported.warnings": [str(entry) for entry in warnings.filters],
        "imported.meta_path": [str(finder).split(" at ")[0] for finder in sys.meta_path if "Stash" not in str(finder)],
        "imported.path": sys.path,
        "imported.environ": dict(os.environ),
        "loggers": sorted(logging.root.manager.loggerDict),
        "torch.threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch.dtype": str(torch.get_default_dtype()),
        "torch.grad": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "torch.deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch.cuda": [torch.cuda.is_available(), torch.cuda._is_in_bad_fork()],
        "torch.debug_level": str(torch.distributed.get_debug_level()),
        "torch.backends": [
            torch.backends.cudnn.enabled,
            torch.backends.mkldnn.enabled,
            torch.backends.mkl.is_available(),
        ],
        "torch.parallel": torch.__config__.parallel_info(),
        "torch.sum": torch.ones(1 << 16).sum().item(),
        "numpy.err": numpy.geterr(),
        "numpy.print": str(numpy.get_printoptions()),
        "save": [torch.save.__module__, torch.save.__qualname__, torch.save is torch.serialization.save],
        "optimizer": str(torch.optim.Optimizer.__module__),
        "specs": sum(getattr(module, "__spec__", None) is None for module in list(sys.modules.values())),
        "loaders": sorted(
            {
                type(getattr(getattr(module, "__spec__", None), "loader", None)).__name__
                for module in list(sys.modules.values())
            }
        ),
        "threads_now": [thread.name for thread in __import__("threading").enumerate()],
    }
    for name in (
        "save",
        "load",
        "nn",
        "optim",
        "utils",
        "distributed",
        "serialization",
        "Tensor",
        "autograd",
        "compile",
    ):
        answers[f"torch.{name}"] = str(getattr(torch, name))[:80].split(" at ")[0]
    return answers


def draw() -> dict[str, object]:
    """What must differ between any two processes."""
    import random
    import secrets
    import tempfile
    import uuid

    import numpy
    import torch

    return {
        "torch": torch.initial_seed(),
        "random": random.random(),
        "numpy": float(numpy.random.random()),
        "rng": float(numpy.random.default_rng().random()),
        "uuid": str(uuid.uuid4()),
        "secrets": secrets.token_hex(),
        "tempfile": next(tempfile._get_candidate_names()),
        "authkey": bytes(__import__("multiprocessing").current_process().authkey).hex(),
    }


def of_children() -> dict[str, object]:
    import multiprocessing

    answers: dict[str, object] = {}
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            answers[f"child.{way}"] = pool.apply(double, (Point(21),)).x
    return answers


def main() -> None:
    import json
    import signal
    import time

    from guardrun import hooks

    answers = of_interpreter() | of_kernel()
    answers |= of_imports()
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    if rank == "0":
        answers |= of_children()
    with open(f"answers-{attempt}-{rank}.json", "w", encoding="utf-8") as file:
        json.dump({"same": answers, "drawn": draw()}, file, default=str)
    left = 3
    while attempt == "0" or left > 0:
        left -= 1
        hooks.step()
        time.sleep(0.05)
        if attempt == "0" and rank == "1" and os.path.exists("go"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
