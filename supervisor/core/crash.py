"""Why an attempt lost its ranks.

All exits and errors of the moment are weighed: the first to fall isn't always to blame.
"""

from __future__ import annotations

import re
import signal

import msgspec

from guardrun.supervisor.core.events import ErrorRecord
from guardrun.supervisor.core.frames import base_name, is_users
from guardrun.supervisor.core.looks import Frame


class Fall(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank ended (or is about to)."""

    global_rank: int
    exitcode: int | None
    at_s: float
    stopped_by_us: bool = False
    error: ErrorRecord | None = None
    stderr_tail: str = ""
    was_oom_killed: bool = False
    is_disk_full: bool = False
    """A folder that ranks write to has no room: torch's writer doesn't say why it failed."""


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a crash."""

    cause: str
    culprits: list[int]
    confidence: float
    key: str
    """Equal for two crashes that are the same error at the same place."""
    exit_code: int
    """The run's, where the run ends with this."""
    what: str
    """For the sentence: `raised ValueError: …`."""
    why_nobody: str = ""
    error: ErrorRecord | None = None


# What a rank says when its peer has gone: gloo's and NCCL's wording in torch 2.6 to 2.13, and the store's.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Software caused connection abort"
    r"|NCCL communicator was aborted|remote process exited|Connection refused.*gloo"
    r"|[Ss]ocket [Tt]imeout|Timed out waiting \d+ms for (?:send|recv)|failed to recv, got 0 bytes"
    r"|DistNetworkError|The client socket has (?:failed|timed out)|Remote host closed",
)
_PEER_LOST_ERRORS = ("DistNetworkError", "BrokenPipeError", "ConnectionResetError")
_MISMATCH = re.compile(
    r"[Dd]etected mismatch between collectives|op\.preamble\.length <= op\.nbytes|collective.*mismatch"
)
_DISK_FULL = re.compile(r"No space left on device|ENOSPC|Errno 28|Disk quota exceeded")
_WRITER = re.compile(r"PytorchStreamWriter failed|file write failed|unexpected pos")
_SHM = re.compile(r"/dev/shm|/torch_\d+|shared memory", re.IGNORECASE)
_CUDA_OOM = re.compile(r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError: CUDA")
_HOST_OOM = re.compile(r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|Errno 12")
_GPU_LOST = re.compile(r"GPU is lost|fallen off the bus|no CUDA-capable device is detected|device unavailable")
_NCCL = re.compile(
    r"NCCL error|ncclInternalError|ncclSystemError|ncclUnhandledCudaError|ncclRemoteError|DistBackendError"
)
_CORRUPT = re.compile(
    r"PytorchStreamReader failed|invalid magic number|unexpected EOF|pickle data was truncated|UnpicklingError"
    r"|failed finding central directory|SafetensorError|HeaderTooLarge"
    r"|file in archive is not in a subdirectory|Ran out of input"
)
_LOADING = ("torch/serialization.py", "torch/distributed/checkpoint", "safetensors/")

_BY_STOP = (-signal.SIGTERM, -signal.SIGKILL)
"""What a stop ends ranks with."""
_BY_SIGNAL = {
    signal.SIGSEGV: "segfault",
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus_error",
}
_NEVER_AGAIN = frozenset({"import_error"})
_SAME_TWICE = frozenset({"exception", "cuda_oom", "host_oom", "collective_mismatch", "checkpoint_corrupt", "disk_full"})
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")


def blame(falls: list[Fall]) -> Blame:
    """Weigh how the ranks of an attempt fell. Raises ValueError for an empty list."""
    if not falls:
        raise ValueError("nobody fell")
    guilty = [fall for fall in falls if _is_suspect(fall)]
    if not guilty:
        return _nobody(falls)
    first = min(guilty, key=_when)
    cause = _cause(first)
    key = _key(first, cause)
    culprits = sorted(f.global_rank for f in guilty if _key(f, _cause(f)) == key)
    return Blame(
        cause=cause,
        culprits=culprits,
        confidence=0.95 if first.error or cause not in ("exit_code", "killed") else 0.9,
        key=key,
        exit_code=exit_code(first),
        what=_what(first, cause),
        error=first.error,
    )


def why_repeated(cause: str, error: str, is_same_as_last: bool) -> str:
    """Why trying again would only repeat it; empty where it may help. error: the exception's type, if any."""
    if cause in _NEVER_AGAIN or error.rsplit(".", 1)[-1] in _SYNTAX:
        return "it would only happen again"
    if is_same_as_last and cause in _SAME_TWICE:
        return "the same error at the same step twice"
    return ""


def exit_code(fall: Fall) -> int:
    """The run's exit status for a rank that fell: its own, 128+N for signal N, else 1."""
    if fall.exitcode is None or (fall.error and fall.exitcode in _BY_STOP):
        return 1  # an exception's, had it not been hurried along on its way out
    return 128 - fall.exitcode if fall.exitcode < 0 else fall.exitcode or 1


def _is_suspect(fall: Fall) -> bool:
    """Whether a rank fell by itself, and not because a peer had gone or we stopped it."""
    if is_peer_lost(fall):
        return False
    if fall.error:
        return True
    return not fall.stopped_by_us and fall.exitcode not in (None, 0)


def is_peer_lost(fall: Fall) -> bool:
    """Whether what it says is only that somebody else has gone."""
    if fall.error:
        if fall.error.error.rsplit(".", 1)[-1] in _PEER_LOST_ERRORS and "torch" in fall.error.traceback:
            return True
        text = f"{fall.error.error}: {fall.error.message}"
        is_torchs = "torch/distributed" in fall.error.traceback or fall.error.error.endswith(
            ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
        )
        return bool(_PEER_LOST.search(text)) and is_torchs
    return fall.exitcode == -signal.SIGABRT and bool(_PEER_LOST.search(fall.stderr_tail))


def _when(fall: Fall) -> float:
    """When it began: an exception's time is before its exit's."""
    return fall.error.at_s if fall.error and fall.error.at_s else fall.at_s


def _cause(fall: Fall) -> str:
    if fall.was_oom_killed:
        return "host_oom"
    if fall.error:
        return _cause_of_error(fall.error, fall.is_disk_full)
    number = _signal(fall.exitcode)
    if number is None:
        return "exit_code"
    if number == signal.SIGABRT and _MISMATCH.search(fall.stderr_tail):
        return "collective_mismatch"
    return _BY_SIGNAL.get(number, "killed")


def _signal(exitcode: int | None) -> signal.Signals | None:
    """The signal behind an exit code; a shell between us and the rank reports 128+N."""
    try:
        if exitcode is not None and exitcode < 0:
            return signal.Signals(-exitcode)
        if exitcode in (134, 135, 137, 139, 143):
            return signal.Signals(exitcode - 128)
    except ValueError:  # a real-time signal has no name in the enum
        return signal.SIGKILL
    return None


def _cause_of_error(error: ErrorRecord, is_disk_full: bool) -> str:
    name = error.error.rsplit(".", 1)[-1]
    text = f"{error.error}: {error.message}"
    if name in ("ImportError", "ModuleNotFoundError"):
        return "import_error"
    if _MISMATCH.search(text):
        return "collective_mismatch"
    if _CUDA_OOM.search(text) or (name == "OutOfMemoryError" and "torch" in error.error):
        return "cuda_oom"
    if _DISK_FULL.search(text) or (is_disk_full and _WRITER.search(text)):
        return "disk_full"
    if name == "MemoryError" or _HOST_OOM.search(text):
        return "host_oom"
    if _GPU_LOST.search(text):
        return "gpu_lost"
    if _CORRUPT.search(text) and any(part in error.traceback for part in _LOADING):
        return "checkpoint_corrupt"
    if _NCCL.search(text):
        return "nccl_error"
    return "exception"


def _key(fall: Fall, cause: str) -> str:
    if not fall.error:
        return f"{cause}:{fall.exitcode}"
    where = fall.error.frames[-1] if fall.error.frames else ("", "", 0)
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", fall.error.message)[:500]
    return f"{cause}:{fall.error.error}:{message}:{where[0]}:{where[2]}"


def _what(fall: Fall, cause: str) -> str:
    if cause == "host_oom" and not fall.error:
        return "was killed by the kernel because memory ran out"
    if fall.error:
        message = " ".join(fall.error.message.split())
        where = _where(fall.error)
        told = f"{fall.error.error.removeprefix('builtins.')}: {message[:200]}" if message else fall.error.error
        return f"raised {told}{where}"
    number = _signal(fall.exitcode)
    if number is not None:
        return f"was ended by signal {number.value} ({number.name})"
    return f"exited with code {fall.exitcode}"


def _where(error: ErrorRecord) -> str:

    for file, function, line in reversed(error.frames):
        if is_users(Frame(function, file, line)):
            return f" in {function} ({base_name(file)}:{line})"
    return ""


def _nobody(falls: list[Fall]) -> Blame:
    """Only ranks that lost a peer, or were stopped: the one to blame left no trace."""
    fallen = [f for f in falls if not f.stopped_by_us or f.error] or falls
    first = min(fallen, key=_when)
    left = [f for f in falls if f.exitcode == 0]
    if left:
        why = f"rank {left[0].global_rank} had ended with exit code 0 while others still expected it in a collective"
    else:
        why = "every rank that fell had only lost the connection to another"
    return Blame(
        cause=_cause(first),
        culprits=[],
        confidence=0.5,
        key=_key(first, _cause(first)),
        exit_code=exit_code(first),
        what=f"{_what(first, _cause(first))}",
        why_nobody=why,
        error=first.error,
    )


def is_shared_memory(error: ErrorRecord | None) -> bool:
    """Whether a full disk was really a full /dev/shm."""
    return bool(error and _SHM.search(error.message))
