"""Reading stacks: whose code a frame is, where a rank is in the user's own terms, which frames are folded away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

import msgspec

from guardrun.supervisor.engine.model.looks import Frame, ThreadLook

_PACKAGES = ("site-packages/", "dist-packages/", "/torch/nn/", "/torch/_", "/torch/autograd/", "/torch/optim/")
_NOT_THE_USERS = (
    "site-packages/",
    "dist-packages/",
    "/lib/python3",
    "guardrun/hooks/",
    # torch built from source lies in no site-packages; a user's own folder may well be called torch.
    "/torch/distributed/",
    "/torch/nn/",
    "/torch/utils/",
    "/torch/autograd/",
    "/torch/optim/",
    "/torch/_",
)
_CALL_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/_functional_collectives.py",
)
"""Whatever is called here and below it waits for others."""
_WRAPPER_FILES = (
    "torch/nn/parallel/distributed.py",
    "torch/distributed/fsdp/",
    "torch/distributed/_composable/",
    "torch/distributed/utils.py",
)
"""These wait for others in C++, or call a model, which does not."""
_WAY_FILES = (
    "torch/_ops.py",
    "torch/_library/",
    "torch/overrides.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/cuda/streams.py",
    "torch/utils/_contextlib.py",
    "guardrun/hooks/",
    "/contextlib.py",
)
"""On the way into a wait: operators, synchronisations with a device, decorators."""
_INIT_FUNCTIONS = frozenset({"init_process_group", "new_group", "_new_process_group_helper"})
_INIT_FILES = ("torch/distributed/rendezvous.py",)
_IMPORTING = "<frozen importlib"
_BACKWARD = "_engine_run_backward"
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/code.py", "/IPython/", "/debugpy/", "/pydevd", "/pudb/", "/ipdb/", "/_pyrepl/")
_PROCESS_FILES = ("/multiprocessing/", "/subprocess.py", "/concurrent/futures/")
_DATA_FILES = ("torch/utils/data/dataloader.py", "torch/utils/data/_utils/")


def is_users(frame: Frame) -> bool:
    """Whether a frame is the user's code: no library's, no interpreter's, not ours."""
    return is_users_file(frame.file)


@lru_cache(maxsize=4096)
def is_users_file(path: str) -> bool:
    """Likewise, for a file. Thousands of ranks are in the same few."""
    return not any(part in path for part in _NOT_THE_USERS) and not path.startswith("<")


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, else the innermost of all; None for an empty stack."""
    for frame in frames:
        if is_users(frame):
            return frame
    return frames[0] if frames else None


def inner_library_frames(frames: list[Frame]) -> list[Frame]:
    """What was called from the innermost user frame, innermost first."""
    inner = []
    for frame in frames:
        if is_users(frame):
            break
        inner.append(frame)
    return inner


def inner_calls(frames: list[Frame]) -> list[Frame]:
    """The same without imports: what a module runs as it is imported is no call of its functions."""
    inner = []
    for frame in inner_library_frames(frames):
        if frame.file.startswith(_IMPORTING):
            break
        if frame.function != "<module>":
            inner.append(frame)
    return inner


def calls_packages(frames: list[Frame]) -> bool:
    """Whether the innermost user frame has called into an installed package, and not only the standard library."""
    return any(part in frame.file for frame in inner_library_frames(frames) for part in _PACKAGES)


def communication(frames: list[Frame]) -> list[Frame]:
    """The innermost frames, as far as they are torch's communication; empty where the stack does not end in it.

    Below DistributedDataParallel's forward, or FSDP's, there may be the model's own: that waits for nobody.
    """
    found: list[Frame] = []
    for frame in frames:
        if any(part in frame.file for part in (*_CALL_FILES, *_WRAPPER_FILES)):
            if frame.function == "<module>":
                return []  # it is being imported
            found.append(frame)
        elif not any(part in frame.file for part in _WAY_FILES):
            break
    return found


def is_call_of_others(frame: Frame) -> bool:
    """Whether a frame of `communication` does nothing but wait for others, with the CPU in use or not."""
    return any(part in frame.file for part in _CALL_FILES)


def waits_in_init(frames: list[Frame]) -> bool:
    """Whether the stack ends in process-group creation or its rendezvous."""
    return any(
        last_name(frame) in _INIT_FUNCTIONS or any(part in frame.file for part in _INIT_FILES)
        for frame in communication(frames)
    )


def is_in_backward(frames: list[Frame]) -> bool:
    """Whether the innermost frame is the autograd engine: every rank shows it during a backward pass."""
    return bool(frames) and last_name(frames[0]) == _BACKWARD


def active_stack(threads: Sequence[ThreadLook]) -> list[Frame]:
    """Where a process is in Python, innermost first: its main thread, or what runs below that.

    A backward pass over a device runs in the engine's thread for it: the main thread stands in the engine, and hooks
    and the user's own functions are frames of that other thread. They come before the main thread's.
    """
    main = next((thread for thread in threads if thread.is_main), threads[0] if threads else None)
    frames = main.frames if main is not None else []
    if not is_in_backward(frames):
        return frames
    below = [thread.frames for thread in threads if thread is not main and _is_engines(thread.frames)]
    return [*max(below, key=len), *frames] if below else frames


def _is_engines(frames: list[Frame]) -> bool:
    """Whether it is a thread that C++ has started, and that torch has called Python in."""
    return bool(frames) and "/torch/" in frames[-1].file and "guardrun/hooks/" not in frames[-1].file


def is_debugged(frames: list[Frame]) -> bool:
    """Whether the stack ends in a debugger's prompt or in its wait for a person."""
    return any(part in frame.file for frame in inner_library_frames(frames) for part in _DEBUGGERS)


def waits_for_data(frames: list[Frame]) -> bool:
    """Whether the stack ends in a DataLoader waiting for its workers."""
    return any(part in frame.file for frame in inner_calls(frames) for part in _DATA_FILES)


def waits_for_process(frames: list[Frame]) -> bool:
    """Whether the stack ends in the standard library's, or torch's, waiting for other processes."""
    return any(part in frame.file for frame in inner_calls(frames) for part in _PROCESS_FILES)


def place(frames: list[Frame]) -> str:
    """Where in the user's code: `file:function`, the same for every line of it. Empty for no stack."""
    frame = user_frame(frames)
    return f"{frame.file}:{frame.function}" if frame else ""


def spot(frames: list[Frame]) -> str:
    """The same for a sentence: `function (file.py:73)`."""
    frame = user_frame(frames)
    return f"{frame.function} ({base_name(frame.file)}:{frame.line})" if frame else ""


def functions(frames: list[Frame]) -> tuple[str, ...]:
    """The stack without its line numbers."""
    return tuple(f"{frame.file}:{frame.function}" for frame in frames)


def last_name(frame: Frame) -> str:
    """The function's own name: py-spy gives qualified ones from Python 3.11 on, faulthandler never does."""
    return frame.function.rsplit(".", 1)[-1]


def base_name(path: str) -> str:
    """A path's last part; os.path is not to be had, since the core must not import os."""
    return path.rsplit("/", 1)[-1]


def rank_list(ranks: list[int]) -> str:
    """Compress ranks: `0-6,8`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def all_ranks_text(count: int) -> str:
    """`both ranks`, `all 8 ranks`."""
    return "both ranks" if count == 2 else f"all {count} ranks"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-6,8`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_list(list(ranks))}"


# Frame folding ------------------------------------------------------------------------------------------------------
# Folding away what is not the user's code: whose a file is, and runs of library frames under one line.


_HOOKS = "/guardrun/hooks/"
_SITES = ("site-packages/", "dist-packages/")


class FrameLike(Protocol):
    """A frame, of one stack or of a group of them."""

    @property
    def function(self) -> str:
        """Its name, qualified (`Class.method`) or not, as its source gives it."""
        ...

    @property
    def file(self) -> str:
        """Its path; `<…>` where the code comes from no file."""
        ...

    @property
    def line(self) -> int:
        """Where the stack is in it; of a group's several lines the first."""
        ...


F = TypeVar("F", bound=FrameLike)


class Fold(msgspec.Struct, Generic[F], frozen=True):
    """Consecutive frames that are shown, or folded under one line."""

    frames: list[F]
    label: str = ""
    """Empty: shown."""


def fold(frames: Sequence[F]) -> list[Fold[F]]:
    """Fold runs of library frames, but for the innermost frame, which says what is being waited in.

    Our own hooks' frames are left out: they are there because somebody watches.
    """
    folds: list[tuple[list[F], bool]] = []
    shown = [frame for frame in frames if _HOOKS not in frame.file] or list(frames)
    for index, frame in enumerate(shown):
        is_folded = index > 0 and not is_users_file(frame.file)
        if is_folded and folds and folds[-1][1]:
            folds[-1][0].append(frame)
        else:
            folds.append(([frame], is_folded))
    return [Fold(run, _label(run) if is_folded and len(run) > 1 else "") for run, is_folded in folds]


def _label(frames: Sequence[FrameLike]) -> str:
    """`7 frames of torch`."""
    names = list(dict.fromkeys(library_name(frame.file) for frame in frames))
    return f"{len(frames)} frames of {', '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def library_name(path: str) -> str:
    """Whose a file is: `torch`, `transformers`, `python` for the standard library."""
    for part in _SITES:
        if part in path:
            return path.rpartition(part)[2].split("/")[0].removesuffix(".py")
    if path.startswith("<") or "/lib/python3" in path:
        return "python"
    for name in ("torch", "guardrun"):
        if f"/{name}/" in path:
            return name
    return "libraries"


def short_path(path: str) -> str:
    """A library's file from the library on, anything else from its last folder on."""
    for part in _SITES:
        if part in path:
            return path.rpartition(part)[2]
    match = re.search(r"/lib/python3[^/]*/(.+)", path)
    if match:
        return match[1]
    return "/".join(path.rsplit("/", 2)[-2:])
