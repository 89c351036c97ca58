"""Tables of what a look at ranks shows: stacks, threads, processes below the ranks, collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from guardrun.supervisor.engine.model.looks import Frame, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.observation.stack_grouping import CHILD, MAIN, Stack
from guardrun.supervisor.query.journal_facts import batch_of_look
from guardrun.supervisor.query.table import INTEGER, JSON, REAL, TEXT, Row, Table, columns, encode

_RANK = ("rank", INTEGER, "global rank")
_PID = ("pid", INTEGER, "the rank's own process, or one below it")
_NODE = ("node", TEXT, "where it runs")
_NO_LOOK = "the run is not alive, and no look at its ranks was kept: guardrun looks when something is wrong"

BACKTRACE = Table(
    "python.backtrace",
    "The Python frames of every thread of every rank, and of the processes below it.",
    columns(
        _RANK,
        _PID,
        ("thread", INTEGER, "the kernel's number of the thread"),
        ("depth", INTEGER, "0 is the innermost"),
        ("func", TEXT, "the function"),
        ("file", TEXT, "its file"),
        ("lineno", INTEGER, "where it stands in it"),
        ("name", TEXT, "the thread's name"),
        ("is_main", INTEGER, "1: the main thread of its process"),
        _NODE,
    ),
    _NO_LOOK,
    is_live=True,
    look_lacks="that look has no Python frames",
)
THREADS = Table(
    "threads",
    "The threads that have Python frames, and the main ones.",
    columns(
        _RANK,
        _NODE,
        _PID,
        ("thread", INTEGER, "the kernel's number of the thread"),
        ("name", TEXT, "its name"),
        ("is_main", INTEGER, "1: the main thread of its process"),
        ("is_rank", INTEGER, "1: of the rank's own process; 0: of one below it"),
        ("owns_gil", INTEGER, "1: it held the GIL"),
        ("cpu_s", REAL, "CPU time used so far"),
        ("switches", INTEGER, "context switches so far"),
        ("frames", INTEGER, "how many Python frames it has (60 at most are told)"),
        ("func", TEXT, "the innermost one: its function"),
        ("file", TEXT, "its file"),
        ("lineno", INTEGER, "its line"),
    ),
    _NO_LOOK,
    is_live=True,
    look_lacks="that look has no Python frames",
)
WORKERS = Table(
    "workers",
    "Processes below the ranks: data loader workers, compilers, what a script started.",
    columns(
        _RANK,
        _NODE,
        ("pid", INTEGER, "its process"),
        ("ppid", INTEGER, "its parent"),
        ("command", TEXT, "its command line"),
        ("state", TEXT, "the letter of /proc/PID/stat: R S D T t Z X; ?: gone"),
        ("wchan", TEXT, "the kernel's function that a T or D process waits in"),
        ("cpu_s", REAL, "CPU time used so far"),
        ("io_bytes", INTEGER, "read and written so far; NULL: not readable"),
        ("threads", INTEGER, "how many are told"),
        ("func", TEXT, "the innermost frame of its main thread: function"),
        ("file", TEXT, "its file"),
        ("lineno", INTEGER, "its line"),
        ("trouble", TEXT, "why there are no (better) stacks"),
    ),
    f"the ranks had no processes below them, or {_NO_LOOK}",
    is_live=True,
    look_lacks="that look has no processes below the ranks",
)
COLLECTIVES = Table(
    "collectives",
    "The last collectives of each rank in each of its process groups; and the call that it is inside of.",
    columns(
        _RANK,
        _NODE,
        ("pg", TEXT, "torch's name of the process group, equal on all its members; NULL: as the hooks see it"),
        ("pg_desc", TEXT, "`default_pg`, or what the script called it"),
        ("backend", TEXT, "nccl, gloo, …"),
        ("pg_ranks", JSON, "global ranks of its members"),
        (
            "issued",
            INTEGER,
            "number of the last one issued in it; of a rank that does not answer (`completed` is NULL) the last that "
            "its hooks saw, so that it may be some further",
        ),
        ("completed", INTEGER, "number of the last one completed; NULL: not known"),
        ("seq", INTEGER, "this one's number, from 1; NULL: the group has none yet"),
        ("op", TEXT, "all_reduce, …"),
        ("state", TEXT, "`issued`, `started`, `completed`; `inside`: the hooks' own word, it has not returned"),
        ("dtype", TEXT, "of its tensors"),
        ("sizes", JSON, "their shapes"),
        ("at_s", REAL, "when it was issued, seconds since the run was created"),
        ("peer", INTEGER, "the other rank of a send or a receive"),
        ("func", TEXT, "the user's line that called it"),
        ("file", TEXT, "its file"),
        ("lineno", INTEGER, "its number"),
    ),
    f"no process group was told, or {_NO_LOOK}",
    is_live=True,
    look_lacks="that look has no process group",
)


class Looked(NamedTuple):
    """A look at ranks, or what is left of one."""

    looks: Sequence[RankLook] = ()
    stacks: Iterable[Stack] = ()
    """In place of them, from files."""
    nodes: Mapping[int, str] = MappingProxyType({})
    attempt: int | None = None


def _backtrace(looked: Looked) -> Iterator[Row]:
    for look in looked.looks:
        node = looked.nodes.get(look.global_rank)
        for process in (look.process, *look.children):
            for thread in process.threads:
                for depth, frame in enumerate(thread.frames):
                    who: Row = (look.global_rank, process.pid, thread.tid, depth)
                    yield (*who, frame.function, frame.file, frame.line or None, thread.name, thread.is_main, node)
    for stack in looked.stacks:
        node, is_main = looked.nodes.get(stack.rank), stack.kind == MAIN
        for depth, frame in enumerate(stack.frames):
            who = (stack.rank, stack.pid, None, depth)
            yield (*who, frame.function, frame.file, frame.line or None, stack.name, is_main, node)


def _threads(looked: Looked) -> Iterator[Row]:
    for look in looked.looks:
        for process in (look.process, *look.children):
            for thread in process.threads:
                who: Row = (look.global_rank, looked.nodes.get(look.global_rank), process.pid, thread.tid, thread.name)
                yield (*who, thread.is_main, process.pid == look.process.pid, *_of_thread(thread))
    for stack in looked.stacks:
        if stack.frames:
            who = (stack.rank, looked.nodes.get(stack.rank), stack.pid, None, stack.name)
            marks = (stack.kind == MAIN, stack.kind != CHILD, stack.owns_gil)
            yield (*who, *marks, None, None, len(stack.frames), *_spot(stack.frames))


def _of_thread(thread: ThreadLook) -> Row:
    return (thread.owns_gil, thread.cpu_s, thread.switches, len(thread.frames), *_spot(thread.frames))


def _workers(looked: Looked) -> Iterator[Row]:
    for look in looked.looks:
        for child in look.children:
            who = (look.global_rank, looked.nodes.get(look.global_rank), child.pid, child.ppid, child.command)
            io_bytes = child.io_bytes if child.io_bytes >= 0 else None
            state = (child.state, child.wchan, child.cpu_s, io_bytes, len(child.threads))
            yield (*who, *state, *_spot(_main_frames(child)), child.trouble)


def _main_frames(process: ProcessLook) -> list[Frame]:
    return next((thread.frames for thread in process.threads if thread.is_main), [])


def _spot(frames: list[Frame]) -> Row:
    return (frames[0].function, frames[0].file, frames[0].line or None) if frames else (None, None, None)


def _collectives(looked: Looked) -> Iterator[Row]:
    for look in looked.looks:
        who = (look.global_rank, looked.nodes.get(look.global_rank))
        for group in look.groups:
            about = (group.name, group.desc or None, group.backend or None, encode(group.ranks), group.issued)
            completed = group.completed if group.completed >= 0 else None
            for call in group.calls:
                what = (call.seq, call.op, call.state, call.dtype or None, encode(call.sizes), call.at_s or None)
                where = _spot([call.frame] if call.frame is not None else [])
                yield (*who, *about, completed, *what, call.peer if call.peer >= 0 else None, *where)
            if not group.calls:
                yield (*who, *about, completed, *(None,) * 10)
        if look.collective_since_s > 0:
            inside = (None, look.in_collective or None, "inside", None, None, look.collective_since_s)
            yield (*who, *(None,) * 6, *inside, *(None,) * 4)


def _batches(looked: Looked) -> Iterator[Row]:
    for look in looked.looks:
        yield from batch_of_look(look, looked.attempt)


ROWS: dict[str, Callable[[Looked], Iterator[Row]]] = {
    BACKTRACE.name: _backtrace,
    THREADS.name: _threads,
    WORKERS.name: _workers,
    COLLECTIVES.name: _collectives,
    "batches": _batches,
}
"""By tables' names."""
