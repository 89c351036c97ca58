"""What a fallen rank left in files: the hooks' Raised, torchrun's error file, the end of its stderr. Parsers are pure.

Files may be cut short (the rank was killed while it wrote), or huge (an exception that quotes a tensor): parsers take
what they understand, and everything is bounded.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from guardrun.hooks.wire.messages import MAX_TEXT_CHARS, Raised
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.engine.failures.failure_causes import WORDS_END, last_words
from guardrun.supervisor.engine.model.events import ErrorRecord

MAX_FILE_BYTES = 1 << 20
STDERR_BYTES = 64 << 10
"""Of its end, in which last words are looked for: C++ stacks and dumps of threads may follow them."""
STDERR_TAIL_BYTES = 4096
"""Of those, what is kept whatever it says."""
MAX_WORDS_LINES = 6
"""An NCCL error has four; what follows may be anybody's."""
_MAX_WORDS_CHARS = 2000
_MAX_FRAMES = 60
_TERMINATE = "terminate called"
_TRACE_FRAME = re.compile(r'^\s*File "(.*)", line (\d+), in (.*)$', re.MULTILINE)
_TYPE_PREFIX = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?|$)")
_STRING = r'"((?:[^"\\]|\\.)*)'


def bound(text: str) -> str:
    """Keep the beginning and the end of a text that is too long: the end of a traceback says most."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    half = MAX_TEXT_CHARS // 2 - 20
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"


def parse_traceback_frames(text: str) -> list[tuple[str, str, int]]:
    """(file, function, line) of the last traceback in a text, outermost first: the innermost 60."""
    last = text.rfind("Traceback (most recent call last)")
    frames = [(m[1], m[3], int(m[2])) for m in _TRACE_FRAME.finditer(text, max(last, 0))]
    return frames[-_MAX_FRAMES:]


def parse_raised(data: bytes, clock: EngineClock) -> ErrorRecord | None:
    """The hooks' Raised as JSON; of a file cut short whatever is there. None where it tells nothing."""
    try:
        raised = msgspec.json.decode(data, type=Raised)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _salvage(data)
    return ErrorRecord(
        error=raised.error,
        message=bound(raised.message),
        traceback=bound(raised.traceback),
        frames=raised.frames[-_MAX_FRAMES:],
        at_s=clock.at_ns(raised.at_ns),
        data=raised.data,
    )


def parse_error_file(data: bytes) -> ErrorRecord | None:
    """torch elastic's error file, old and new form; None where it tells nothing.

    {"message": {"message": "ValueError: …", "extraInfo": {"py_callstack": "Traceback …", "timestamp": "…"}}}, or
    {"message": "ValueError: …"} (torch/distributed/elastic/multiprocessing/errors/error_handler.py, 2.6 to 2.13). Its
    timestamp is wall time in whole seconds, so at_s stays unknown.
    """
    try:
        content = json.loads(data)
    except ValueError:
        return _salvage(data)
    message: Any = content.get("message") if isinstance(content, dict) else None
    callstack = ""
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        callstack = str(extra.get("py_callstack") or "") if isinstance(extra, dict) else ""
        message = message.get("message")
    if not isinstance(message, str) or not message:
        return None
    return _record(message, callstack)


def _record(text: str, traceback: str) -> ErrorRecord:
    match = _TYPE_PREFIX.match(text)
    error = match[1] if match else ""
    return ErrorRecord(
        error=error,
        message=bound(text[match.end() :] if match else text),
        traceback=bound(traceback),
        frames=parse_traceback_frames(traceback),
    )


def _salvage(data: bytes) -> ErrorRecord | None:
    """Take the strings that a cut-off JSON still holds."""
    text = data[:MAX_FILE_BYTES].decode("utf-8", "replace")
    found: dict[str, str] = {}
    for key, raw in re.findall(rf'"(error|message|traceback|py_callstack)"\s*:\s*{_STRING}', text):
        try:
            found.setdefault(key, json.loads(f'"{raw}"'))
        except ValueError:
            continue
    traceback = found.get("traceback") or found.get("py_callstack") or ""
    if "error" in found:
        return ErrorRecord(
            error=found["error"],
            message=bound(found.get("message", "")),
            traceback=bound(traceback),
            frames=parse_traceback_frames(traceback),
        )
    return _record(found["message"], traceback) if found.get("message") else None


def parse_tail(data: bytes) -> str:
    """The end of a stderr file, from the first whole line on where it was cut; and last words that stand before it."""
    text = data[-STDERR_BYTES:].decode("utf-8", "replace")
    if len(data) > STDERR_BYTES and "\n" in text[:-1]:
        text = text.partition("\n")[2]
    return keep_end(text)


def keep_end(text: str) -> str:
    """The last STDERR_TAIL_BYTES of a rank's words, and before them its last words where something long follows."""
    if len(text) <= STDERR_TAIL_BYTES:
        return text
    end = text[-STDERR_TAIL_BYTES:].partition("\n")[2] or text[-STDERR_TAIL_BYTES:]
    words = native_words(text)
    return end if native_words(end) == words else words[:_MAX_WORDS_CHARS] + WORDS_END + end


def native_words(text: str) -> str:
    """What native code said last, as `last_words` of engine/failures/failure_causes.py finds it; empty: nothing."""
    at = text.rfind(_TERMINATE)
    words = last_words(text[at:] if at >= 0 else text)
    lines = words.splitlines()[:MAX_WORDS_LINES]
    return "\n".join([f"what(): {lines[0]}", *lines[1:]]) if at >= 0 and lines else "\n".join(lines)
