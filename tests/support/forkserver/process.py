"""What a forked process does to become the Python that an `exec` would have started.

Kernel's side: session, descriptors, working folder, signals, name, and the command line and environment that /proc
shows (PR_SET_MM_MAP). Python's side: sys.modules, sys.path, sys.argv, standard streams, signal handlers, the site's
customization, `__main__`; then the program runs in a greenlet, whose stack begins with the program's own first frame,
as py-spy sees it. At its end threads are joined, exit functions run and streams are flushed; modules are not taken
apart, and C++'s static objects not destroyed.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import signal
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NoReturn

import greenlet

from tests.support.forkserver.program import Program
from tests.support.forkserver.stash import Stash

PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
"""linux/prctl.h"""

INTERRUPTED = -1
"""Python ends by SIGINT itself after a KeyboardInterrupt that nobody caught."""

LIBC = ctypes.CDLL(None, use_errno=True)
KEPT: list[Any] = []
"""What the process that was forked had and must not be destroyed here: its descriptors' numbers are others' now."""


@dataclass
class Request:
    """A process to be."""

    program: Program
    environment: dict[str, str]
    cwd: str
    umask: int
    is_new_session: bool
    descriptors: dict[int, int] = field(default_factory=dict)
    """Number there → number here; all others are closed, …"""
    kept: set[int] = field(default_factory=set)
    """… but these."""
    ready: int = -1
    """A descriptor that is closed once the process shows what it is to show, as Popen returns after the exec."""


@dataclass
class Origin:
    """What a fresh interpreter looks like; taken by the server, before it imported anything else."""

    path: list[str]
    """Without the script's folder."""
    meta_path: list[Any]
    hooks: dict[str, Any]
    encoding: str
    errors: str

    @classmethod
    def take(cls, path: list[str], meta_path: list[Any]) -> Origin:
        return cls(
            path=path,
            meta_path=meta_path,
            hooks={name: getattr(sys, name) for name in ("excepthook", "displayhook", "unraisablehook")},
            encoding=sys.stdout.encoding,
            errors=sys.stdin.errors or "strict",
        )


def become(request: Request, origin: Origin, stash: Stash, *, forget: tuple[str, ...] = ()) -> NoReturn:
    """Be that process, to its end. forget: packages that are to be imported from their files again."""
    gc.freeze()  # What nobody refers to any more must not be destroyed here, either.
    KEPT.append((stash.find_others(), sys.stdin, sys.stdout, sys.stderr, sys.argv, sys._getframe()))
    _be_one_to_the_kernel(request)
    _be_one_to_python(request, origin, stash, forget)
    code = _run(request.program)
    _end(code)


def _be_one_to_the_kernel(request: Request) -> None:
    if request.is_new_session:
        os.setsid()
    place_descriptors(request.descriptors, request.kept | {request.ready})
    os.chdir(request.cwd)
    os.umask(request.umask)
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        if signum not in (signal.SIGKILL, signal.SIGSTOP) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # As every Python does; Popen had it reset before.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request.environment)
    show(request.program, request.environment)
    os.close(request.ready)


def place_descriptors(wanted: dict[int, int], kept: set[int]) -> None:
    """Give each its number, whatever has that now; then close all others."""
    high = max([*wanted, *wanted.values(), *kept, 2]) + 1
    aside = {}
    for number, here in wanted.items():
        os.dup2(here, high + number, inheritable=False)
        aside[number] = high + number
    for number, there in aside.items():
        os.dup2(there, number)
    begin = 0
    for number in [*sorted({*aside, *kept}), os.sysconf("SC_OPEN_MAX")]:
        if begin < number:
            os.closerange(begin, number)
        begin = number + 1


def _be_one_to_python(request: Request, origin: Origin, stash: Stash, forget: tuple[str, ...]) -> None:
    program = request.program
    atexit._clear()  # Modules ask again when they are imported.
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    KEPT.append(weakref.finalize._registry)  # type: ignore[attr-defined]
    weakref.finalize._registry = {}  # type: ignore[attr-defined]
    sys.meta_path[:] = origin.meta_path
    for package in forget:
        stash.forget(package)
    stash.hide()
    for name, hook in origin.hooks.items():
        setattr(sys, name, hook)
    sys.dont_write_bytecode = bool(request.environment.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = [program.target if program.kind == "script" else f"-{program.kind[0]}", *program.arguments]
    sys.orig_argv[:] = program.command
    _make_streams(program.is_unbuffered, origin)
    given = request.environment.get("PYTHONPATH")
    entries = [os.path.abspath(entry) for entry in given.split(os.pathsep)] if given else []
    sys.path[:] = list(dict.fromkeys([*entries, *origin.path]))
    # What a finder knows of its folder is spread over thousands of pages: it stays, and nobody asks it.
    KEPT.append(sys.path_importer_cache)
    sys.path_importer_cache = {}
    main = ModuleType("__main__")
    main.__annotations__ = {}
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if entries:
        import site

        # A distribution's own was imported when the server began; the one that is first on the path now hides it.
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()


def _make_streams(is_unbuffered: bool, origin: Origin) -> None:
    """As pylifecycle.c's create_stdio makes them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = None
        mode = "r" if number == 0 else "w"
        try:
            os.fstat(number)
        except OSError:
            pass
        else:
            is_raw = is_unbuffered and number > 0
            raw: Any = open(number, mode + "b", buffering=0 if is_raw else -1, closefd=False)  # noqa: SIM115
            (raw if is_raw else raw.raw).name = f"<{name}>"
            stream = io.TextIOWrapper(
                raw,
                encoding=origin.encoding,
                errors="backslashreplace" if number == 2 else origin.errors,
                newline=None if number == 0 else "\n",
                line_buffering=not is_unbuffered and (number == 2 or os.isatty(number)),
                write_through=is_unbuffered,
            )
            stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(program: Program) -> int:
    """The exit status, or INTERRUPTED."""
    try:
        if program.kind == "module":
            _begin_module(program.target)
        else:
            _begin_code(program)
    except SystemExit as exit_:
        return _status(exit_.code)
    except BaseException as error:
        _report(error)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _begin_module(name: str) -> None:
    import runpy

    sys.path.insert(0, os.getcwd())
    greenlet.greenlet(runpy._run_module_as_main).switch(name)  # type: ignore[attr-defined]


def _begin_code(program: Program) -> None:
    main = vars(sys.modules["__main__"])
    if program.kind == "code":
        sys.path.insert(0, "")
        from importlib.machinery import BuiltinImporter

        main["__loader__"] = BuiltinImporter
        code = compile(program.target, "<string>", "exec", dont_inherit=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(program.target)))
        from importlib.machinery import SourceFileLoader

        main["__loader__"] = SourceFileLoader("__main__", program.target)
        main["__file__"] = os.path.abspath(program.target)
        main["__cached__"] = None
        try:
            with open(program.target, "rb") as file:
                text = file.read()
        except OSError as error:
            sys.stderr.write(
                f"{sys.executable}: can't open file {os.path.abspath(program.target)!r}: "
                f"[Errno {error.errno}] {error.strerror}\n"
            )
            raise SystemExit(2) from None
        code = compile(text, main["__file__"], "exec", dont_inherit=True)
    run: Callable[..., object] = exec
    greenlet.greenlet(run).switch(code, main)


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """As the interpreter does, without the frames below the program's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException:
        sys.__excepthook__(*sys.exc_info())


def _end(status: int) -> NoReturn:
    """As the interpreter ends, but for taking its modules apart: that would copy every page that is shared."""
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    vars(sys.modules["__main__"]).clear()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            status = 120  # Py_FinalizeEx
    if status == INTERRUPTED:  # main.c, exit_sigint
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


class _MemoryMap(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end",
        )),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_int32),
    )  # fmt: skip


def can_show() -> bool:
    """Whether this kernel lets a process show what was not executed (CONFIG_CHECKPOINT_RESTORE); tried in a child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            show(Program("code", "", [], False, ["shown"], "shown"), {})
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def show(program: Program, environment: dict[str, str]) -> None:
    """Let /proc/PID/cmdline, environ and comm show these, as ps and guardrun read them."""
    LIBC.prctl(PR_SET_NAME, os.fsencode(program.name), 0, 0, 0)
    arguments = b"".join(os.fsencode(word) + b"\0" for word in program.command)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    text = ctypes.create_string_buffer(arguments + variables)
    KEPT.append(text)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        numbers = [int(word) if word.isdigit() else 0 for word in file.read().rpartition(")")[2].split()]
    begin = ctypes.addressof(text)
    LIBC.sbrk.restype = ctypes.c_void_p
    LIBC.sbrk.argtypes = (ctypes.c_ssize_t,)
    layout = _MemoryMap(
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
    if LIBC.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(layout), ctypes.sizeof(layout), 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")
