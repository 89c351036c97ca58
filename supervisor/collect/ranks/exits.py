"""What is left to read when ranks have fallen: files of the hooks' and torchrun's, and the ends of their stderr.

Parsers are pure.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from guardrun.hooks.wire.messages import MAX_TEXT_CHARS, UncaughtException
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.base.known_types import known_type
from guardrun.supervisor.collect.collectives.process_groups import read_last_calls
from guardrun.supervisor.collect.host.node_readings import read_room
from guardrun.supervisor.collect.host.oom_kills import OomWatch
from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.collect.ranks.stack_dumps import parse_fatal
from guardrun.supervisor.engine.failures.backend_words import telling_lines
from guardrun.supervisor.engine.failures.failure_causes import WORDS_END, last_words
from guardrun.supervisor.engine.model.events import ErrorRecord, ExitsRead, ExitTrace, Rank

# Error files --------------------------------------------------------------------------------------------------------
# What a fallen rank left in files: the hooks' UncaughtException, torchrun's error file, the end of its
# stderr. Parsers are pure.
#
# Files may be cut short (the rank was killed while it wrote), or huge (an exception that quotes a tensor): parsers take
# what they understand, and everything is bounded.


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
    """The hooks' UncaughtException as JSON; of a file cut short whatever is there. None where it tells nothing."""
    try:
        raised = msgspec.json.decode(data, type=known_type(UncaughtException))
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
    """The last STDERR_TAIL_BYTES of a rank's words, and before them what tells of its end where that stands further up.

    That is what native code said last, and what torch's watchdog said of the rank and its peers.
    """
    if len(text) <= STDERR_TAIL_BYTES:
        return text
    end = text[-STDERR_TAIL_BYTES:].partition("\n")[2] or text[-STDERR_TAIL_BYTES:]
    words, telling = native_words(text), telling_lines(text)
    kept = [
        *([telling] if telling != telling_lines(end) else []),
        *([words[:_MAX_WORDS_CHARS]] if words != native_words(end) else []),
    ]
    return WORDS_END.join([*kept, end])


def native_words(text: str) -> str:
    """What native code said last, as `last_words` of engine/failures/failure_causes.py finds it; empty: nothing."""
    at = text.rfind(_TERMINATE)
    words = last_words(text[at:] if at >= 0 else text)
    lines = words.splitlines()[:MAX_WORDS_LINES]
    return "\n".join([f"what(): {lines[0]}", *lines[1:]]) if at >= 0 and lines else "\n".join(lines)


# Shared log ---------------------------------------------------------------------------------------------------------
# The last words of ranks that share the launcher's stderr, read back where that is a regular file.
#
# `nohup guardrun … > log 2>&1` and a batch script's output file are: nothing has to stand between a rank and its log to
# know what native code said before it aborted. Lines that begin with a rank (`[rank3]:`, as torch has them) are that
# rank's; of the others nobody can say whose they are, and the engine takes them only for a node's one rank that
# aborted.


_OF_RANK = re.compile(r"^\[rank(\d{1,9})\]:")


class SharedLog(NamedTuple):
    """The launcher's stderr, a regular file."""

    launcher_pid: int
    begin: int
    """Where the attempt's own part begins, in bytes."""

    @property
    def path(self) -> str:
        """Opens the very file, also after it was renamed."""
        return f"/proc/{self.launcher_pid}/fd/2"

    def folder(self) -> str:
        """Where the file lies, which takes no look at its file system; empty where nothing tells."""
        try:
            return os.path.dirname(os.readlink(self.path))
        except OSError:
            return ""


class Words(NamedTuple):
    """What a shared log says."""

    of_ranks: Mapping[int, str]
    """Per global rank: the end of its own lines, as `keep_end` has it."""
    of_anybody: str
    """The last words of native code among the other lines; empty where there are none."""


NO_WORDS = Words({}, "")


def read_words(log: SharedLog) -> Words:
    """What the attempt's ranks said last. Call only where the file's mount answers; nothing where it can't be read."""
    try:
        with open(log.path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return NO_WORDS
            begin = log.begin if log.begin <= status.st_size else 0  # truncated meanwhile
            first = max(begin, status.st_size - STDERR_BYTES)
            file.seek(first)
            data = file.read(STDERR_BYTES)
            return parse_words(data if first == begin else data.partition(b"\n")[2])
    except OSError:
        return NO_WORDS


def parse_words(data: bytes) -> Words:
    """Tell ranks' lines apart. Pure."""
    of_ranks: dict[int, list[str]] = {}
    others: list[str] = []
    for line in data.decode("utf-8", "replace").splitlines():
        found = _OF_RANK.match(line)
        lines = of_ranks.setdefault(int(found[1]), []) if found else others
        lines.append(line)
    return Words(
        {rank: keep_end("\n".join(lines)) for rank, lines in of_ranks.items()},
        native_words("\n".join(others)),
    )


# Exits --------------------------------------------------------------------------------------------------------------


def raised_name(attempt: int, global_rank: int) -> str:
    """The file in the socket folder in which the hooks leave an exception."""
    return f"raised-{attempt}-{global_rank}.json"


def read_exits(
    attempt: int,
    ranks: Iterable[Rank],
    *,
    sockets_dir: str | os.PathLike[str],
    clock: EngineClock,
    error_files: Mapping[int, str],
    stderr_files: Mapping[int, str],
    log: SharedLog | None = None,
    oom: OomWatch,
    folders: Iterable[str] = (),
    failed_loads: Mapping[int, str] | None = None,
) -> ExitsRead:
    """Read what the ranks left: exceptions, the end of their stderr, OOM counters, room on the disks.

    error_files, stderr_files and failed_loads are per global rank; log is what ranks without a file of their own write
    to; folders are those whose free space matters. Ranks that left nothing have no trace. Takes little more than a
    second even where a mount is dead.
    """
    asked = list(folders)
    place = log.folder() if log is not None else ""
    free, readings = read_room([*asked, place] if place else asked)
    words = read_words(log) if log is not None and place in free else NO_WORDS
    if place not in asked:
        free.pop(place, None)
    traces = []
    ranks = list(ranks)
    for rank in ranks:
        number = rank.global_rank
        error = _read_error(os.path.join(sockets_dir, raised_name(attempt, number)), error_files.get(number), clock)
        tail = read_tail(stderr_files[number]) if stderr_files.get(number) else words.of_ranks.get(number, "")
        groups = read_last_calls(sockets_dir, attempt, number, clock)
        load = (failed_loads or {}).get(number, "")
        fatal = read_bytes(os.path.join(sockets_dir, f"fatal-{attempt}-{number}"), MAX_FILE_BYTES)
        stack = parse_fatal(fatal.decode("utf-8", "replace")) if fatal else []
        trace = ExitTrace(
            global_rank=number, error=error, stderr_tail=tail, stack=stack, groups=groups, failed_load=load
        )
        if error is not None or tail or stack or groups or load:
            traces.append(trace)
    return ExitsRead(
        attempt=attempt,
        traces=traces,
        oom_kills=oom.kills(),
        oom_pids=oom.pids(),
        disk_free_bytes=free,
        readings=readings,
        last_words={ranks[0].node: words.of_anybody} if ranks and words.of_anybody else {},
    )


def _read_error(raised_path: str, error_path: str | None, clock: EngineClock) -> ErrorRecord | None:
    """The hooks' word first: it has the qualified type, the frames and a monotonic time."""
    data = read_bytes(raised_path, MAX_FILE_BYTES)
    error = parse_raised(data, clock) if data else None
    if error is None and error_path:
        data = read_bytes(error_path, MAX_FILE_BYTES)
        error = parse_error_file(data) if data else None
    return error


def read_tail(path: str) -> str:
    """The end of a file, as `parse_tail` has it; empty where it can't be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - STDERR_BYTES - 1))
            return parse_tail(file.read(STDERR_BYTES + 1))
    except OSError:
        return ""
