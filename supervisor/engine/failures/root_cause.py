"""Why an attempt lost its ranks.

All exits and errors of the moment are weighed: the first to fall isn't always to blame.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

import msgspec

from guardrun.supervisor.engine.failures.backend_words import (
    NOTHING_SAID,
    BackendWords,
    lost_peers,
    read_words,
    who_was_waited_for,
)
from guardrun.supervisor.engine.failures.exception_chain import Layer, Relation, layers_of
from guardrun.supervisor.engine.failures.failure_causes import (
    CauseMatch,
    cause_of_error,
    cause_of_log,
    cause_with_device,
    last_words,
)
from guardrun.supervisor.engine.model.events import ErrorRecord
from guardrun.supervisor.engine.model.looks import Frame, Reading
from guardrun.supervisor.engine.observation.frames import base_name, is_users, user_frame


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
    has_oom_nearby: bool = False
    """The kernel killed for want of memory where this rank runs: a worker of it, it may be."""
    failed_load: str = ""
    """The checkpoint, or file, that a load of it raised about last."""
    has_ended: bool = False
    """Its script was over: the interpreter was ending."""
    stack: list[Frame] = []
    """Where a fatal signal met it, innermost first; empty where none did, or nothing tells."""


class Beside(msgspec.Struct, frozen=True):
    """Ranks that raised something else at once."""

    ranks: list[int]
    what: str


class RootCause(msgspec.Struct, frozen=True, kw_only=True):
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
    hint: str = ""
    """What advice goes by, beyond the cause (engine/failures/failure_patterns.py)."""
    layer: Layer | None = None
    """The exception of the chain that tells the cause, where that isn't the one that ended the rank."""
    failed_load: str = ""
    place: str = ""
    """Where in the user's code, `function (file.py)`; empty unknown."""
    stack: list[Frame] = []
    """Where a fatal signal met it."""
    left_early: list[int] = []
    """Ranks that had ended with exit code 0 when others lost them in a collective."""
    beside: list[Beside] = []
    """Other errors of the same moment; their ranks are culprits as well."""


# What a rank says when its peer has gone: gloo's and NCCL's wording in torch 2.6 to 2.13, and the store's.
_PEER_LOST = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Software caused connection abort"
    r"|NCCL communicator was aborted|ncclRemoteError|remote process exit(?:ed|ing)|Connection refused.*gloo"
    r"|[Ss]ocket [Tt]imeout|Timed out waiting \d+ms for (?:send|recv)|failed to recv, got 0 bytes"
    r"|DistNetworkError|The client socket has (?:failed|timed out)|Remote host closed"
    r"|Watchdog caught collective operation timeout",
)
_PEER_LOST_ERRORS = ("DistNetworkError", "BrokenPipeError", "ConnectionResetError")
_TORCHS_ERRORS = ("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError")
_WATCHDOGS = ("watchdog", "watchdog_stuck")
"""Hints: torch's own watchdog, or the monitor of that, has ended the rank."""
_SHM = re.compile(r"/dev/shm|/torch_\d+|shared memory", re.IGNORECASE)

SYSTEM_EXIT = "SystemExit"
"""In the place of an exception: `sys.exit` with words, which say why."""
_BY_STOP = (-signal.SIGTERM, -signal.SIGKILL)
"""What a stop ends ranks with."""
_BY_SIGNAL = {
    signal.SIGSEGV: "segfault",
    signal.SIGABRT: "abort",
    signal.SIGBUS: "bus_error",
}
_NEVER_AGAIN = frozenset({"import_error"})
_MEANT = {
    SYSTEM_EXIT: "the script has ended itself",
    "KeyboardInterrupt": "the script was interrupted",
    "BrokenPipeError": "nobody reads its output any more",
}
"""What ends a run under torchrun, and would not be another way the next time."""
AT_ONCE_S = 1.0
"""Errors of several ranks, none of which follows on another's by what it says."""
MAX_BESIDE = 2
MAX_HOSTS = 3
_SAME_TWICE = frozenset({"exception", "cuda_oom", "host_oom", "collective_mismatch", "checkpoint_corrupt", "disk_full"})
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")
_OWN_CAUSES = frozenset({"gpu_lost", "cuda_oom", "host_oom", "disk_full", "checkpoint_corrupt", "import_error"})
"""Causes that no other rank's leaving makes, whatever else the text says."""
_TORCHS_PLACE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|hpp):\d+\] ")
_TORCHS_ADVICE = " This is typically caused by"
_WORKER = re.compile(r"in DataLoader worker process (\d+)")
_NCCLS_PLACE = re.compile(r"^NCCL error in: .*?\b(nccl\w+): .*?\bLast error:\s*", re.DOTALL)
"""What torch puts before NCCL's own words: a line of its source, what the kind of error means in general."""
_WATCHDOGS_PLACE = re.compile(
    r"\[PG ID \S+ PG GUID [^\]]*\] +(?:Process group watchdog thread terminated with exception: )?(?:\[Rank \d+\] )?"
)
_CUDAS_ADVICE = re.compile(
    r"(?:Search for `\w+' in https://docs\.nvidia\.com|CUDA kernel errors might be asynchronously reported).*",
    re.DOTALL,
)
_UNPICKLER = re.compile(r"Weights only load failed.*(?=WeightsUnpickler error: )", re.DOTALL)
"""Three lines of instructions that torch.load puts before what was wrong (torch/serialization.py, UNSAFE_MESSAGE)."""
_CHILD = re.compile(r"-- Process (\d+) terminated with")


class _Weighed(msgspec.Struct, frozen=True):
    """A fall, and what it says. Told once: it may be a long text, and there may be thousands of ranks."""

    fall: Fall
    cause_match: CauseMatch
    layer: Layer | None
    """The exception that the sentence quotes."""
    is_victim: bool
    key: str
    words: BackendWords


def blame(
    falls: list[Fall], readings: list[Reading] | None = None, nodes: Mapping[str, str] | None = None
) -> RootCause:
    """Weigh how the ranks of an attempt fell. nodes: by address or name of a host. Raises ValueError for no falls."""
    if not falls:
        raise ValueError("nobody fell")
    weighed = [_weigh(fall, readings or []) for fall in falls]
    guilty = [one for one in weighed if not one.is_victim and _is_suspect(one.fall)]
    if not guilty:
        return _nobody(weighed, nodes or {})
    first = min(guilty, key=lambda one: _when(one.fall))
    cause = first.cause_match.cause
    beside = _beside(first, guilty)
    alike = [one.fall.global_rank for one in guilty if one.key == first.key]
    found = _blame(
        first,
        culprits=sorted([*alike, *(rank for other in beside for rank in other.ranks)]),
        confidence=0.95 if first.fall.error or cause not in ("exit_code", "killed") else 0.9,
    )
    return msgspec.structs.replace(found, beside=beside)


def _beside(first: _Weighed, guilty: list[_Weighed]) -> list[Beside]:
    """Exceptions that were raised at the same moment, where the first is one, too."""
    if first.fall.error is None:
        return []
    others: dict[str, list[_Weighed]] = {}
    for one in guilty:
        if one.fall.error and one.key != first.key and _when(one.fall) - _when(first.fall) <= AT_ONCE_S:
            others.setdefault(one.key, []).append(one)
    return [
        Beside(
            sorted(one.fall.global_rank for one in alike),
            _what(alike[0].fall, alike[0].cause_match.cause, alike[0].layer),
        )
        for alike in list(others.values())[:MAX_BESIDE]
    ]


def is_lasting(cause: str, error: str) -> bool:
    """Whether it happens each time on a node: an import, a syntax error. error: the exception's type, if any."""
    return cause in _NEVER_AGAIN or error.rsplit(".", 1)[-1] in _SYNTAX


def why_repeated(cause: str, error: str, is_same_as_last: bool) -> str:
    """Why trying again would only repeat it; empty where it may help. error: the exception's type, if any."""
    if is_lasting(cause, error):
        return "it would only happen again"
    if cause in ("exception", "exit_code") and (why := _MEANT.get(error.rsplit(".", 1)[-1])):
        return why
    if is_same_as_last and cause in _SAME_TWICE:
        return "the same error at the same step twice"
    return ""


def exit_code(fall: Fall) -> int:
    """The run's exit status for a rank that fell: its own, 128+N for signal N, else 1."""
    if fall.exitcode is None or (fall.error and fall.exitcode in _BY_STOP):
        return 1  # an exception's, had it not been hurried along on its way out
    return 128 - fall.exitcode if fall.exitcode < 0 else fall.exitcode or 1


def is_peer_lost(fall: Fall) -> bool:
    """Whether what it says is only that somebody else has gone, or never came."""
    words = _words(fall)
    return _is_victim(fall, layers_of(fall.error) if fall.error else [], _own_cause(fall, words), words)


def _weigh(fall: Fall, readings: list[Reading]) -> _Weighed:
    words = _words(fall)
    told = cause_with_device(_own_cause(fall, words), readings)
    layers = layers_of(fall.error) if fall.error else []
    layer = told.layer or _quoted(layers) or _root(layers)
    return _Weighed(fall, told, layer, _is_victim(fall, layers, told, words), _key(fall, told.cause, layer), words)


def _words(fall: Fall) -> BackendWords:
    """What torch said there of other ranks; its monitor does so on stderr also where somebody else ends the rank."""
    return read_words("\n".join(filter(None, [fall.error.message if fall.error else "", fall.stderr_tail])))


def _quoted(layers: list[Layer]) -> Layer | None:
    """The first that happened elsewhere, or in a group, and is no group itself."""
    quoted = [one for one in layers if one.relation is Relation.QUOTED]
    return next((one for one in quoted if not one.error.endswith("ExceptionGroup")), quoted[0] if quoted else None)


def _root(layers: list[Layer]) -> Layer | None:
    """What it was all raised from; None where it was raised from nothing."""
    return next((one for one in reversed(layers) if one.relation is Relation.CAUSE), None)


def _own_cause(fall: Fall, words: BackendWords) -> CauseMatch:
    """The cause, as the rank alone shows it."""
    if fall.was_oom_killed:
        return CauseMatch(cause="host_oom")
    if fall.error and fall.error.error == SYSTEM_EXIT:
        return CauseMatch(cause="exit_code")
    if fall.error:
        told = cause_of_error(fall.error, fall.is_disk_full)
        is_memory = told.cause == "killed" and told.hint == "worker" and fall.has_oom_nearby
        return msgspec.structs.replace(told, cause="host_oom") if is_memory else told
    number = _signal(fall.exitcode)
    if number is None:
        return CauseMatch(cause="exit_code")
    if number == signal.SIGABRT and (told_by_log := cause_of_log(fall.stderr_tail)):
        # What merely hints at a cause of the script's is an abort all the same.
        is_named = told_by_log.cause != "exception"
        return told_by_log if is_named else msgspec.structs.replace(told_by_log, cause="abort")
    if number == signal.SIGABRT and (words.is_stuck or words.was_ended_by_peer):
        return CauseMatch(cause="nccl_error", hint="watchdog_stuck" if words.is_stuck else "watchdog")
    return CauseMatch(cause=_BY_SIGNAL.get(number, "killed"))


def _is_suspect(fall: Fall) -> bool:
    """Whether a rank fell by itself, and not because we stopped it."""
    if fall.error:
        return True
    return not fall.stopped_by_us and fall.exitcode not in (None, 0)


def _is_victim(fall: Fall, layers: list[Layer], told: CauseMatch, words: BackendWords) -> bool:
    if told.cause in _OWN_CAUSES or told.hint.startswith("worker"):
        return False
    if not fall.error:
        waited = bool(_PEER_LOST.search(fall.stderr_tail)) or told.hint in _WATCHDOGS
        return _signal(fall.exitcode) == signal.SIGABRT and waited
    if words.is_victim and fall.error.error.endswith(_TORCHS_ERRORS):
        return True
    if fall.error.error.rsplit(".", 1)[-1] in _PEER_LOST_ERRORS and "torch" in fall.error.traceback:
        return True
    is_torchs = "torch/distributed" in fall.error.traceback
    return any(
        bool(_PEER_LOST.search(f"{one.error}: {one.message}")) and (is_torchs or one.error.endswith(_TORCHS_ERRORS))
        for one in layers
    )


def _when(fall: Fall) -> float:
    """When it began: an exception's time is before its exit's."""
    return fall.error.at_s if fall.error and fall.error.at_s else fall.at_s


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


def _key(fall: Fall, cause: str, layer: Layer | None) -> str:
    if not fall.error:
        return f"{cause}:{fall.exitcode}"
    told = layer or Layer(error=fall.error.error, message=fall.error.message, frames=fall.error.frames)
    where = told.frames[-1] if told.frames else ("", "", 0)
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", told.message)[:500]
    return f"{cause}:{told.error}:{message}:{where[0]}:{where[2]}"


def _what(fall: Fall, cause: str, layer: Layer | None) -> str:
    if cause == "host_oom" and not fall.error:
        return "was killed by the kernel because memory ran out"
    if fall.error and fall.error.error == SYSTEM_EXIT:
        return _exited(fall.exitcode, fall.error)
    if fall.error:
        return _raised(fall.error, layer)
    number = _signal(fall.exitcode)
    if number is None:
        return f"exited with code {fall.exitcode}"
    words = " ".join(_shorter(last_words(fall.stderr_tail)).split()) if number == signal.SIGABRT else ""
    frame = user_frame(fall.stack)
    where = f" in {frame.function} ({base_name(frame.file)}:{frame.line})" if frame and is_users(frame) else ""
    if fall.has_ended and not where:
        where = " after its script had ended"
    return f"was ended by {_signal_text(fall.exitcode, number)}{where}" + (f": {words[:200]}" if words else "")


def _signal_text(exitcode: int | None, number: signal.Signals) -> str:
    """`signal 11 (SIGSEGV)`; a real-time signal has no name."""
    is_nameless = exitcode is not None and exitcode < 0 and -exitcode != number
    return f"signal {-(exitcode or 0)}" if is_nameless else f"signal {number.value} ({number.name})"


def _shorter(message: str) -> str:
    """The part of a backend's message that is about this error: a sentence has room for 200 characters."""
    return _CUDAS_ADVICE.sub("", _WATCHDOGS_PLACE.sub("", _NCCLS_PLACE.sub(r"\1: ", message)))


def _raised(error: ErrorRecord, layer: Layer | None) -> str:
    """`raised ValueError: bad sample in load (data.py:3), in DataLoader worker 0`."""
    told = layer or Layer(error=error.error, message=error.message)
    said = " ".join(_shorter(_UNPICKLER.sub("", told.message)).split())
    message = _TORCHS_PLACE.sub("", said.partition(_TORCHS_ADVICE)[0])
    text = f"{told.error.removeprefix('builtins.')}: {message[:200].rstrip('. ')}" if message else told.error
    frame = _user_frame(layer.frames if layer else []) or _user_frame(error.frames)
    where = f" in {frame.function} ({base_name(frame.file)}:{frame.line})" if frame else ""
    if match := _WORKER.search(error.message):
        where += f", in DataLoader worker {match[1]}"
    elif match := _CHILD.search(error.message):
        where += f", in child process {match[1]}"
    elif layer and layer.relation is not Relation.ITSELF and layer.error != error.error:
        where += f" (told as {_outer(error, layer)})"
    return f"raised {text}{where}"


def _outer(error: ErrorRecord, layer: Layer) -> str:
    """What a wrapper is called, and says, where those are its own words."""
    name = error.error.rsplit(".", 1)[-1]
    said = " ".join(error.message.split())[:100].rstrip(". ")
    return f"{name}: {said}" if said and layer.relation is Relation.CAUSE else name


def _exited(exitcode: int | None, error: ErrorRecord) -> str:
    """`exited with code 1: no such data set, in main (train.py:3)`."""
    frame = _user_frame(error.frames)
    where = f", in {frame.function} ({base_name(frame.file)}:{frame.line})" if frame else ""
    return f"exited with code {exitcode}: {' '.join(error.message.split())[:200].rstrip('. ')}{where}"


def _user_frame(frames: list[tuple[str, str, int]]) -> Frame | None:
    """The innermost frame of the user's own."""
    told = (Frame(function, file, line) for file, function, line in reversed(frames))
    return next((frame for frame in told if is_users(frame)), None)


def _place(error: ErrorRecord | None, layer: Layer | None) -> str:
    frame = _user_frame(layer.frames if layer else []) or (_user_frame(error.frames) if error else None)
    return f"{frame.function} ({base_name(frame.file)})" if frame else ""


def _signal_place(stack: list[Frame]) -> str:
    frame = user_frame(stack)
    return f"{frame.function} ({base_name(frame.file)})" if frame and is_users(frame) else ""


def _blame(one: _Weighed, culprits: list[int], confidence: float, why_nobody: str = "") -> RootCause:
    fall, told = one.fall, one.cause_match
    return RootCause(
        cause=told.cause,
        culprits=culprits,
        confidence=confidence,
        key=one.key,
        exit_code=exit_code(fall),
        what=_what(fall, told.cause, one.layer),
        why_nobody=why_nobody,
        error=fall.error,
        hint=told.hint,
        layer=one.layer,
        failed_load=fall.failed_load,
        place=_place(fall.error, one.layer) or _signal_place(fall.stack),
        stack=fall.stack,
    )


def _nobody(weighed: list[_Weighed], nodes: Mapping[str, str]) -> RootCause:
    """Only ranks that lost a peer, or were stopped: the one to blame left no trace."""
    fallen = [one for one in weighed if not one.fall.stopped_by_us or one.fall.error] or weighed
    left = [one.fall for one in weighed if one.fall.exitcode == 0]
    if left:
        # Those that ended with 0 are not the ones that fell.
        fallen = [one for one in fallen if one.fall.exitcode != 0] or fallen
        why = f"rank {left[0].global_rank} had ended with exit code 0 while others still expected it in a collective"
    else:
        why = f"every rank that fell had only lost the connection to another{_where_to(fallen, nodes)}"
    first = min(fallen, key=lambda one: _when(one.fall))
    if not left and (found := _waited_for(weighed, first)):
        return found
    blame = _blame(first, [], 0.5, why)
    return msgspec.structs.replace(blame, left_early=[fall.global_rank for fall in left])


def _where_to(fallen: list[_Weighed], nodes: Mapping[str, str]) -> str:
    """` (10.0.0.7, node-b)`: whom they lost, where NCCL names it; empty where it names many, or nobody."""
    texts = [f"{one.fall.error.message if one.fall.error else ''}\n{one.fall.stderr_tail}" for one in fallen]
    hosts = list(dict.fromkeys(host for text in texts for host in lost_peers(text)))
    found = {host: nodes.get(host) or nodes.get(host.partition(".")[0], "") for host in hosts}
    named = [f"{host}, {node}" if node not in ("", host) else host for host, node in found.items()]
    return f" ({'; '.join(named)})" if 0 < len(named) <= MAX_HOSTS else ""


def _waited_for(weighed: list[_Weighed], first: _Weighed) -> RootCause | None:
    """The verdict by what torch's watchdog and store said of others; None where they said nothing."""
    said = {one.fall.global_rank: one.words for one in weighed if one.words != NOTHING_SAID}
    silent = [one.fall.global_rank for one in weighed if one.words == NOTHING_SAID]
    met = who_was_waited_for(said, silent)
    if met is None:
        return None
    found = _blame(first, met.culprits, met.confidence, met.why_nobody)
    return msgspec.structs.replace(found, what=met.what or found.what)


def is_shared_memory(error: ErrorRecord | None) -> bool:
    """Whether a full disk was really a full /dev/shm."""
    return bool(error and _SHM.search(error.message))
