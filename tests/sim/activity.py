"""What a virtual rank may be doing, as a look would show it: faults that never end, and decoys that do."""

from __future__ import annotations

from dataclasses import dataclass

from guardrun.supervisor.engine.model.looks import Frame

Stack = tuple[Frame, ...]

SCRIPT = "/home/user/train.py"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
_MAIN = (Frame("train", SCRIPT, 60), Frame("main", SCRIPT, 90), Frame("<module>", SCRIPT, 99))


def users(function: str, line: int, *inner: Frame) -> Stack:
    """A stack in the user's function, called from the training loop; inner: library frames, innermost first."""
    return (*inner, Frame(function, SCRIPT, line), *_MAIN)


def torchs(function: str, file: str, line: int = 1) -> Frame:
    return Frame(function, f"{TORCH}/{file}", line)


def waiting(op: str) -> Stack:
    """In a collective, called from the training loop."""
    file = "distributed/distributed_c10d.py"
    return (torchs(op, file, 2800), torchs("wrapper", "distributed/c10d_logger.py", 83), *_MAIN)


_MODULE = torchs("_call_impl", "nn/modules/module.py", 1750)
COMPUTING: tuple[Stack, ...] = (
    users("forward", 20, torchs("linear", "nn/functional.py"), _MODULE),
    users("forward", 22, torchs("layer_norm", "nn/functional.py"), _MODULE, _MODULE),
    users("forward", 24, torchs("softmax", "nn/functional.py"), _MODULE),
    users("attend", 31, torchs("matmul", "_tensor.py"), _MODULE),
    users("forward", 26, torchs("gelu", "nn/functional.py"), _MODULE),
    users("forward", 28, torchs("embedding", "nn/functional.py"), _MODULE),
    users("loss", 40, torchs("cross_entropy", "nn/functional.py")),
    users("step", 50, torchs("adamw", "optim/adamw.py"), torchs("step", "optim/optimizer.py")),
)


@dataclass(frozen=True)
class Activity:
    """How a rank looks while it does something; rates are per second."""

    name: str
    cause: str = ""
    """The incident's cause that is right for it; empty for what a healthy rank does."""
    stacks: tuple[Stack, ...] = COMPUTING
    state: str = "S"
    cpu: float = 0.0
    """Cores of the main thread."""
    other_cpu: float = 0.0
    """Cores of its other threads."""
    io: float = 0.0
    sockets: float = 0.0
    faults: float = 0.0
    wakes: float = 0.0
    """Times that its main thread wakes up, while it sleeps."""
    child_cpu: float | None = None
    """Cores of a child process; None: it has none."""
    has_gil: bool = True
    """Its hooks' thread beats."""
    is_native: bool = False
    """What its main thread runs is native code, which has let go of the GIL, or keeps it from the others."""
    takes_sigterm: bool = True
    standstill: str = ""
    is_collecting: bool = False
    is_waiting_for_data: bool = False
    in_collective: str = ""

    @property
    def owns_gil(self) -> bool:
        """py-spy sees its main thread keep the GIL: a loop of Python's nearly always does."""
        return self.cpu > 0.5 and self.state in "RS" and not (self.is_native and self.has_gil)

    @property
    def is_fault(self) -> bool:
        return bool(self.cause)


TRAINING = Activity("training", cpu=0.9)
IMPORTING = Activity(
    "importing",
    stacks=tuple(
        (Frame("_find_spec", "<frozen importlib._bootstrap>", 9), Frame("<module>", f"{TORCH}/m{n}.py", 1), *_MAIN[2:])
        for n in range(6)
    ),
    cpu=0.9,
    io=5e6,
)
WAITING = Activity("waiting", stacks=(waiting("all_reduce"),), in_collective="all_reduce")
WAITING_SPINNING = Activity("waiting, spinning", stacks=(waiting("all_reduce"),), in_collective="all_reduce", cpu=1.0)
WAITING_IN_INIT = Activity(
    "waiting in init",
    stacks=(
        (torchs("rendezvous", "distributed/rendezvous.py"), torchs("init_process_group", "distributed/x.py"), *_MAIN),
    ),
)

# Faults ------------------------------------------------------------------------------------------------

HANG = Activity("hang", "rank_blocked", (users("fetch_vocabulary_update", 73),))
SPIN = Activity(
    "spin",
    "rank_spinning",
    (users("wait_for_flag", 80), users("wait_for_flag", 81), users("is_set", 85, Frame("x", SCRIPT, 81))),
    state="R",
    cpu=1.0,
)
STOPPED = Activity("stopped", "rank_stopped", COMPUTING[:1], state="T", takes_sigterm=False, has_gil=False)
TRACED = Activity("traced", "rank_stopped", COMPUTING[:1], state="t", takes_sigterm=False, has_gil=False)
GIL_HELD = Activity("gil held", "gil_held", (users("native_call", 88),), has_gil=False, takes_sigterm=False)
IO_BLOCKED = Activity(
    "io blocked", "io_blocked", (users("read_shard", 91),), state="D", takes_sigterm=False, has_gil=True
)
DATA_DEAD = Activity(
    "data dead",
    "dataloader_stall",
    (users("train", 60, torchs("_try_get_data", "utils/data/dataloader.py")),),
    is_waiting_for_data=True,
    child_cpu=0.0,
)
COLLECTING = Activity("collecting", "gc_pause", COMPUTING[:1], cpu=1.0, is_collecting=True, has_gil=False)
LINGERING = Activity("lingering", "rank_blocked", ((Frame("_shutdown", "/usr/lib/python3.11/threading.py", 1590),),))
WRONG_OP = Activity(
    "wrong operation",
    "collective_mismatch",
    (users("log_metrics", 47, torchs("barrier", "distributed/distributed_c10d.py", 4900)),),
    in_collective="barrier",
)
DYING = Activity("dying", "dying", COMPUTING[:1], state="D", takes_sigterm=False, has_gil=False)
FAULTS = (HANG, SPIN, STOPPED, TRACED, GIL_HELD, IO_BLOCKED, DATA_DEAD)

# Decoys: they end by themselves --------------------------------------------------------------------------

EVALUATING = Activity("evaluating", cpu=1.0, stacks=COMPUTING[:7])
EVALUATING_ELSEWHERE = Activity("evaluating in a child", stacks=(users("evaluate", 70),), child_cpu=1.0)
EVALUATING_IN_THREADS = Activity("evaluating in threads", stacks=(users("evaluate", 70),), other_cpu=3.0)
SAVING = Activity("saving", stacks=(users("save", 75, torchs("_save", "serialization.py")),), io=2e8, cpu=0.3)
UPLOADING = Activity("uploading", stacks=(users("upload", 77),), sockets=1e6)
COMPILING = Activity("compiling", stacks=(users("compile", 66),), child_cpu=0.9)
PARSING = Activity("parsing", stacks=(users("read_annotations", 68),), cpu=1.0, faults=20_000, has_gil=False)
FITTING = Activity("fitting natively", stacks=(users("fit", 64),), state="R", cpu=1.0, is_native=True)
SEARCHING = Activity(
    "searching natively", stacks=(users("search", 63),), state="R", cpu=1.0, has_gil=False, is_native=True
)
LOADING_LIBRARY = Activity("loading a library", stacks=(users("load", 69),), state="D", faults=2_000)
BACKWARD = Activity(
    "a long backward", stacks=(users("train", 60, torchs("_engine_run_backward", "autograd/graph.py")),), cpu=1.0
)
_PACKAGED = Frame("sdpa", "/opt/venv/lib/python3.11/site-packages/transformers/modeling.py", 9)
_DDP = (torchs("_run_ddp_forward", "nn/parallel/distributed.py"), torchs("forward", "nn/parallel/distributed.py"))
_FSDP = (torchs("forward", "distributed/fsdp/fully_sharded_data_parallel.py"),)
FIRST_FORWARD_DDP = Activity(
    "a model of a package under DDP", stacks=((_PACKAGED, _MODULE, *_DDP, _MODULE, *_MAIN),), cpu=1.0
)
FIRST_FORWARD_FSDP = Activity(
    "a model of a package under FSDP", stacks=((_PACKAGED, _MODULE, *_FSDP, _MODULE, *_MAIN),), cpu=1.0
)
COMPILING_UNDER_DDP = Activity(
    "compiling below DDP", stacks=((torchs("compile", "_inductor/x.py"), _MODULE, *_DDP, *_MAIN),), child_cpu=0.9
)
_C10D = "distributed/distributed_c10d.py"
PICKLING = Activity(
    "pickling what is to be sent",
    stacks=(
        users("state", 7, torchs("_object_to_tensor", _C10D)),
        users("__getstate__", 9, torchs("all_gather_object", _C10D)),
        *COMPUTING[:3],
    ),
    in_collective="all_gather_object",
    cpu=1.0,
)
BUSY_DECOYS = (
    FIRST_FORWARD_DDP,
    FIRST_FORWARD_FSDP,
    COMPILING_UNDER_DDP,
    PICKLING,
    EVALUATING,
    EVALUATING_ELSEWHERE,
    EVALUATING_IN_THREADS,
    SAVING,
    UPLOADING,
    COMPILING,
    PARSING,
    LOADING_LIBRARY,
    BACKWARD,
)
NATIVE_DECOYS = (FITTING, SEARCHING)
"""Where guardrun is eager they look like a loop, or like a library's deadlock."""
PAUSING = Activity("pausing", stacks=(users("pause", 65),))
DATA_SLOW = Activity("data slow", stacks=DATA_DEAD.stacks, is_waiting_for_data=True, child_cpu=0.0)
COLLECTING_BRIEFLY = Activity("collecting briefly", stacks=COMPUTING[:1], cpu=1.0, is_collecting=True, has_gil=False)
BRIEFLY_STOPPED = Activity("briefly stopped", stacks=COMPUTING[:1], state="T", has_gil=False)
