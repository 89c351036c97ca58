"""What a rank died of, told from the text of its exception or from the last words on its stderr.

An exception is looked through (`engine/failures/exception_chain.py`): first itself and what it quotes, then what it was
raised from. What was merely being handled when it was raised counts only where it is a fault of the machine
(`_MACHINE`): a script that tries an import, and goes on without it, does not die of that. Or where what was raised says
nothing of its own: torch tells of a dead data worker in a signal handler, and a Condition that is waited on then only
says that its lock is not locked. Patterns are in `engine/failures/failure_patterns.py`.
"""

from __future__ import annotations

import re

import msgspec

from guardrun.supervisor.engine.failures.exception_chain import Layer, Relation, layers_of
from guardrun.supervisor.engine.failures.failure_patterns import PATTERNS, Pattern
from guardrun.supervisor.engine.model.events import ErrorRecord
from guardrun.supervisor.engine.model.looks import Reading

_COMPILED = tuple((pattern, re.compile(pattern.text) if pattern.text else None) for pattern in PATTERNS)
_MACHINE = frozenset({"cuda_oom", "gpu_lost", "nccl_error", "disk_full", "host_oom", "checkpoint_corrupt"})
_FROM_LOG = _MACHINE | {"collective_mismatch"}
_DEVICE_DOUBTS = frozenset({"nccl_error", "gpu_lost", "abort", "unknown"})
_CUDA_HINTS = frozenset({"illegal_access", "launch_failure"})
_SAYS_NOTHING = re.compile(r"^(?:release unlocked lock|cannot release un-acquired lock)$")
"""Modules/_threadmodule.c: an exception came in between a lock's release and its being acquired again."""
_LOST = re.compile(r"\blost\b|off the bus|uncorrectable|\bXid\b", re.IGNORECASE)
_WHAT = re.compile(r"what\(\):\s*(.*)", re.DOTALL)
_LAST_LINES = re.compile(
    r"Assertion .* failed|double free or corruption|free\(\): invalid|malloc\(\): |munmap_chunk\(\)|corrupted size vs"
    r"|stack smashing detected|terminate called|Fatal Python error|Check failed:"
)
"""glibc's assert.c and malloc.c; libstdc++; Python's pylifecycle.c; glog."""
_ITS_NAME = "Fatal Python error: Aborted"
"""What faulthandler says of SIGABRT, after whoever raised it has said why."""
WORDS_END = "\n…\n"
"""Between last words that were taken out of a text, and its end."""
_STACK_FOLLOWS = re.compile(
    rf"{WORDS_END}|\n(?:Exception raised from |frame #\d+:|C\+\+ CapturedTraceback:|\s*\[?[\w-]*\]?:?\[E)"
)


class CauseMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, and what it was told from."""

    cause: str
    hint: str = ""
    layer: Layer | None = None
    """The exception that shows it; None where none does, or it is the one that ended the rank."""


def cause_of_error(error: ErrorRecord, is_disk_full: bool = False) -> CauseMatch:
    """What an exception says. is_disk_full: a folder that ranks write to has no room."""
    hinted = CauseMatch(cause="exception")
    says_nothing = _SAYS_NOTHING.match(error.message) is not None
    for layer in layers_of(error):
        found = match(layer, is_disk_full, error.traceback)
        if found is None:
            continue
        if layer.relation is Relation.CONTEXT and found.cause not in _MACHINE and not says_nothing:
            continue
        told = CauseMatch(
            cause=found.cause, hint=found.hint, layer=None if layer.relation is Relation.ITSELF else layer
        )
        if found.cause != "exception":
            return told
        if not hinted.hint:
            hinted = told
    return hinted


def match(layer: Layer, is_disk_full: bool = False, trace: str = "") -> Pattern | None:
    """The first pattern that fits one exception. trace: where its files are looked for if its frames are unknown."""
    files = "\n".join(file for file, _, _ in layer.frames) or trace
    name = layer.error.rsplit(".", 1)[-1]
    text = f"{layer.error}: {layer.message}"
    for pattern, regex in _COMPILED:
        if pattern.needs_full_disk and not is_disk_full:
            continue
        if pattern.types and name not in pattern.types:
            continue
        if pattern.files and not any(part in files for part in pattern.files):
            continue
        if regex is None or regex.search(text):
            return pattern
    return None


def last_words(stderr_tail: str) -> str:
    """What native code said before abort(): C++'s `what()`, else an assertion's or the C library's line; or nothing."""
    found = _WHAT.search(stderr_tail)
    if found:
        return _STACK_FOLLOWS.split(found[1], maxsplit=1)[0].strip()
    said = [line.strip() for line in stderr_tail.splitlines() if _LAST_LINES.search(line)]
    return next((line for line in reversed(said) if line != _ITS_NAME), said[-1] if said else "")


def cause_of_log(stderr_tail: str) -> CauseMatch | None:
    """What the last words of a rank that a signal ended say of the machine; None where they say nothing of it."""
    text = last_words(stderr_tail)
    found = match(Layer(error="", message=text)) if text else None
    if found is None or (found.cause not in _FROM_LOG and not found.hint):
        return None
    return CauseMatch(cause=found.cause, hint=found.hint)


def cause_with_device(told: CauseMatch, readings: list[Reading]) -> CauseMatch:
    """The device's own word over a guess: a lost one is why NCCL, or a kernel, failed."""
    is_doubtful = told.cause in _DEVICE_DOUBTS or told.hint in _CUDA_HINTS
    if is_doubtful and lost_device(readings):
        return CauseMatch(cause="gpu_lost", hint="reading", layer=told.layer)
    return told


def lost_device(readings: list[Reading]) -> str:
    """The reading of a device that says it is lost, as text; empty where none does."""
    for reading in readings:
        if reading.is_odd and reading.name.lower().startswith("gpu") and _LOST.search(f"{reading.name} {reading.note}"):
            return f"{reading.name}: {reading.note}" if reading.note else reading.name
    return ""
