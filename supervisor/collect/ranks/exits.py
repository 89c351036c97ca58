"""What is left to read when ranks have fallen: the answer to ReadExits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.collectives.last_calls import read_last_calls
from guardrun.supervisor.collect.host.disk_room import read_room
from guardrun.supervisor.collect.host.oom_kills import OomWatch
from guardrun.supervisor.collect.host.procfs import read_bytes
from guardrun.supervisor.collect.ranks.error_files import (
    MAX_FILE_BYTES,
    STDERR_BYTES,
    parse_error_file,
    parse_raised,
    parse_tail,
)
from guardrun.supervisor.collect.ranks.faulthandler_text import parse_fatal
from guardrun.supervisor.collect.ranks.shared_log import NO_WORDS, SharedLog, read_words
from guardrun.supervisor.engine.model.events import ErrorRecord, ExitsRead, ExitTrace, Rank


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
