"""torch's profiler, put on and taken off by the thread that trains; and everything that has to be minded meanwhile.

It belongs to the thread that has started it: another one can't take it off. Left on, it ends the process by a fault
when the interpreter ends (torch 2.13), and records on in children that are forked, without end. So it is taken off

    between two steps       as it came
    by a pending call       where a step does not end: the interpreter makes it on the main thread as soon as that runs
                            Python again, as it does handlers of signals
    before a fork           of that thread
    by atexit               if the script ends first
    for the script          when that starts a profiler itself: two at once lose what one of them has recorded, and
                            older torch raises

What has begun under it, and goes on when it is taken off, does no harm when it ends; but it does under the next
session: it writes to memory of the first one, which is free by then (torch up to 2.13). Operators, collectives and the
optimizer's step end before the next one can begin. Where something else was under way, there is none any more.

torch itself is asked (torch.autograd.profiler.profile), not Kineto: its calls are those of torch 2.6 to 2.13.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import sys
from _thread import get_ident
from time import monotonic_ns, sleep

from guardrun.hooks.examine.confined_code import is_of_signal
from guardrun.hooks.examine.found_objects import MAX_BLOCKS, find_instances
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
"""By which whoever profiles begins; …"""
PLACES = ("torch.autograd.profiler", "torch.autograd.profiler_legacy", "torch.autograd", "torch._C._autograd")
"""… as these modules know them."""
OTHERS = {
    "KINETO_USE_DAEMON": "its profiler is a daemon's (KINETO_USE_DAEMON)",
    "NSYS_PROFILING_SESSION_ID": "Nsight Systems profiles it",
    "CUDA_INJECTION64_PATH": "another profiler is loaded into it (CUDA_INJECTION64_PATH)",
}
OWN_PROFILER = "the script profiles by itself"
STEPPING = "ProfilerStep"
"""By which torch.profiler.profile counts steps, as long as there is one."""
SAFE_CUDA = (12, 6)
"""Before, CUPTI breaks graphs that were captured once it is taken off (torch/profiler/profiler.py, start_trace)."""
WAIT_S = 10.0
"""How long a thread of the script that begins to profile waits for ours to be taken off."""
ALLOCATED = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
)  # fmt: skip
END_MARK = "guardrun.end"
"""The last that ends before it is taken off: what seems to end later has not ended."""
MAX_OPEN = 8
PASSING = re.compile(
    r"Optimizer\.|ProfilerStep#|aten::|autograd::|torch::autograd::|c10d::|DistributedDataParallel\.|enumerate\(DataLoader"
    r"|FSDP|\w+Backward\d*$|guardrun\.|Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction"
    r"|Python(?:DispatchMode|Subclass)|\w+:_?(?:all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|reduce)"
)
"""What has not ended when the profiler is taken off ends then, to torch: names of what does so soon in fact."""
_CAPTURES = int(Field.CAPTURES)

_open: list[str] = []
"""What was under way at the end of a session, for nobody knows how long."""
_pending: list[object] = []
"""What the interpreter is to call: it takes no reference."""


def find_obstacle(rank: Rank, torch: Any) -> str:
    """Why it must not be started now; empty: nothing speaks against it."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None or not profiler.kineto_available():
        return "its torch is built without a profiler"
    if getattr(profiler, "_is_profiler_enabled", False) or torch.autograd._profiler_enabled():
        return OWN_PROFILER
    if _is_warming_up(profiler):
        return OWN_PROFILER
    if _open:
        return (
            f"when it was profiled before, {_open[0][:80]!r} was under way, which the script has named: if that ends "
            "while the profiler is on once more, torch crashes"
        )
    for name, why in OTHERS.items():
        if os.environ.get(name):
            return why
    version = str(getattr(torch.version, "cuda", None) or "")
    if rank.has_captured and version and tuple(map(int, version.split(".")[:2])) < SAFE_CUDA:
        return f"it replays captured graphs, which the profiler of CUDA {version} breaks: from 12.6 on it does not"
    return ""


def _is_warming_up(profiler: Any) -> bool:
    """Whether the script has prepared a profiler that it starts some steps later: torch crashes if another one comes.

    torch tells of it nowhere. Where there are too many objects to look for one, any that the script has counts.
    """
    if sys.getallocatedblocks() > MAX_BLOCKS:
        return STEPPING in getattr(getattr(profiler, "KinetoStepTracker", None), "_step_dict", ())
    return any(
        one.enabled and one.entered and one.kineto_results is None for one in find_instances((profiler.profile,))
    )


def note_open(events: list[Any]) -> None:
    """Remember what had not ended when the profiler was taken off. events: all that it has recorded."""
    ends = [event.start_ns() + event.duration_ns() for event in events]
    last = max(ends, default=0)
    for event, end in zip(events, ends, strict=True):
        if end == last and len(_open) < MAX_OPEN and not PASSING.match(name := str(event.name())):
            _open.append(name)


class _Allocated(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in ALLOCATED]


def read_allocated() -> int:
    """Bytes that C and C++ hold, as far as the C library's allocator knows them; 0: it does not say."""
    if (function := getattr(ctypes.CDLL(None), "mallinfo2", None)) is None:  # glibc before 2.33, another library
        return 0
    function.restype = _Allocated
    told = function()
    return int(told.uordblks + told.hblkhd)


def find_device(torch: Any) -> str:
    """Which kind of device is recorded, as torch names it; empty: none, as none is used, or torch can't."""
    supported = {activity.name.lower() for activity in torch.profiler.supported_activities()}
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if kind in supported and module is not None and module.is_initialized():
            return kind
    return ""


class Recorder:
    """One session after the other. All but `post` is for the thread that trains."""

    def __init__(self, rank: Rank, torch: Any, on_lost: Callable[[str], None]) -> None:
        """on_lost: called, on that thread, when it had to be taken off before its time, and why."""
        self._rank, self._torch = rank, torch
        self._profiler: Any = sys.modules["torch.autograd.profiler"]
        self._on_lost = on_lost
        self._session: Any = None
        self._originals: list[tuple[Any, str, Any, Any]] = []
        """Module, name, torch's function, ours."""
        self._is_busy = False
        """It is being put on, or taken off."""
        self._call: _Call | None = None
        """Posted, and not made yet."""
        self.device = ""
        self.start_ns = self.stop_ns = 0
        """What these took, all together."""

    @property
    def is_on(self) -> bool:
        """Whether it records."""
        return self._session is not None

    def start(self) -> None:
        """Put it on. Raises what torch does; then it is off."""
        began_ns = monotonic_ns()
        self._is_busy = True
        try:
            self.device = find_device(self._torch)
            session = self._profiler.profile(use_kineto=True, use_cpu=True, use_device=self.device or None)
            try:
                session._prepare_trace()
                session._start_trace()
                self._session = session
                self._watch()
            except BaseException:  # Ctrl-C, too
                self._session = None
                self._unwatch()
                self._end(session)
                raise
        finally:
            self._is_busy = False
            self.start_ns += monotonic_ns() - began_ns

    def stop(self) -> Any:
        """Take it off, and answer what it has recorded; None where it is off. Waits for the device."""
        session = self._session
        if session is None or self._is_busy:
            return None
        began_ns = monotonic_ns()
        self._is_busy = True
        try:
            self._unwatch()
            try:
                self.mark(END_MARK)
                session.__exit__(None, None, None)
            except BaseException:  # Ctrl-C while it waits for the device
                self._end(session)
                raise
            return session.kineto_results
        finally:
            self._session = None
            self._is_busy = False
            self.stop_ns += monotonic_ns() - began_ns

    def _end(self, session: Any) -> None:
        """Left on, it would end the process by a fault."""
        if self._torch.autograd._profiler_enabled():
            session.__exit__(None, None, None)
        self._profiler._is_profiler_enabled = False  # torch may not have come to that

    def mark(self, name: str) -> None:
        """Have a moment recorded by this name. No dispatch mode of the script's sees it."""
        with self._torch._C._profiler._RecordFunctionFast(name):
            pass

    def lose(self, why: str, *, is_last: bool = False) -> None:
        """Take it off before its time, but not in a capture, unless it is the last chance.

        Raises nothing but what a handler of the script's does, for a signal that comes meanwhile.
        """
        if self._session is None or self._is_busy or (self._rank.words[_CAPTURES] and not is_last):
            return
        try:
            self._on_lost(why)
        except Exception as error:
            if is_of_signal(error):
                raise
            self._rank.fail("profile", error)

    def post(self, why: str) -> None:
        """Have it taken off as soon as the main thread runs Python. For any thread."""
        if self._call is not None:
            return
        call = self._call = _Call(self, why)
        _pending.append(call)
        add = ctypes.pythonapi.Py_AddPendingCall
        add.argtypes, add.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        # bool(call) is what has the signature of such a call, an exception of a signal's handler included.
        function = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
        if add(function, id(call)):
            self.called(call)  # there are too many: the next beat tries again

    def called(self, call: _Call) -> None:
        """The interpreter has made the call, or will not."""
        _pending.remove(call)
        self._call = None

    # What the script does meanwhile --------------------------------------------------------------------------------

    def _watch(self) -> None:
        atexit.register(self._at_exit)
        self._rank.forks = self
        for place in PLACES:
            module = sys.modules.get(place)
            for name in STARTS:
                if (original := getattr(module, name, None)) is not None:
                    ours = self._wrap(original)
                    setattr(module, name, ours)
                    self._originals.append((module, name, original, ours))

    def _unwatch(self) -> None:
        atexit.unregister(self._at_exit)
        originals, self._originals = self._originals, []
        for module, name, original, ours in originals:
            if getattr(module, name) is ours:
                setattr(module, name, original)

    def _wrap(self, original: Any) -> Any:
        def begin(*args: Any, **kwargs: Any) -> Any:
            self._make_way()
            return original(*args, **kwargs)

        return begin

    def _make_way(self) -> None:
        """The script starts a profiler."""
        if get_ident() == self._rank.owner_ident:
            self.lose(OWN_PROFILER)
        elif self._session is not None:
            self.post(OWN_PROFILER)
            until_ns = monotonic_ns() + int(WAIT_S * 1e9)
            while self._session is not None and monotonic_ns() < until_ns:
                sleep(0.005)
            if self._session is not None:  # the main thread waits, for this one, say: torch would crash
                raise RuntimeError(
                    f"guardctl profile has torch's profiler on, and could not take it off in {WAIT_S:g} s"
                )

    def _at_exit(self) -> None:
        self.lose("the script has ended", is_last=True)  # left on, it would end the process by a fault

    def before_fork(self) -> None:
        """The thread that asks is about to fork."""
        if get_ident() == self._rank.owner_ident:
            self.lose("the script forked (as a DataLoader does for its workers): what it starts must not be recorded")

    def in_child(self) -> None:
        """In a forked child: Kineto waits at its end for threads that it does not have, for good (torch 2.13)."""
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):  # glibc; called in reverse, after Python has ended, with the exit status
            libc.on_exit(libc._exit, None)
            # By its name as text: within a class, Python would mangle it.
            getattr(libc, "__cxa_atexit")(libc.fflush, None, None)


class _Call:
    """What the interpreter calls on the main thread."""

    def __init__(self, recorder: Recorder, why: str) -> None:
        self._recorder, self._why, self._pid = recorder, why, os.getpid()

    def __bool__(self) -> bool:
        self._recorder.called(self)
        if os.getpid() == self._pid:
            self._recorder.lose(self._why)
        return False
