"""A look: stacks and counters of every rank's whole process tree, gathered within a hard time limit.

Counters are read before stacks, so that taking stacks is not what they show. A rank whose CPU is used is sampled a few
times within half a second: whether its main thread stays in the same few lines tells spinning from busy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.calls_page import RECORDER_THREAD
from guardrun.launcher.base.processes import short_command
from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.base.clock import EngineClock
from guardrun.supervisor.collect.collectives.nccl_ras import LIMIT_S, read_ras
from guardrun.supervisor.collect.collectives.process_groups import (
    LAST_CALLS,
    LAST_CALLS_OF_MANY,
    MANY_RANKS,
    NO_HOOKS,
    Asked,
    GroupsRead,
    read_groups,
)
from guardrun.supervisor.collect.collectives.recorder_reader import RecorderReaders
from guardrun.supervisor.collect.host.blocked_calls import Background, explain
from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import (
    Io,
    IoCounts,
    Stat,
    ThreadStat,
    age_s,
    is_timed,
    read_call,
    read_cmdline,
    read_delay_s,
    read_io,
    read_io_counts,
    read_kernel_stack,
    read_own_io,
    read_stat,
    read_threads,
    read_wchan,
)
from guardrun.supervisor.collect.host.socket_traffic import read_tcp_bytes, socket_bytes
from guardrun.supervisor.collect.ranks.boards import BLANK, BoardReader, collective_of, phase_of, shares_of
from guardrun.supervisor.collect.ranks.look_files import RAS_FILE, write_look, write_text
from guardrun.supervisor.collect.ranks.native_frames import NATIVE_FRAMES, Asker, Place, find_place, find_runner
from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.stack_dumps import TIMEOUT_S
from guardrun.supervisor.collect.ranks.stacks import Fallback, StackDump, dump_stacks
from guardrun.supervisor.collect.ranks.thread_waits import NONE, Standstill, read_standstill
from guardrun.supervisor.engine.model.events import Rank
from guardrun.supervisor.engine.model.looks import (
    PYSPY,
    Frame,
    ProcessLook,
    RankLook,
    Reading,
    ThreadLook,
)

MAX_CHILDREN = 32
MAX_THREADS = 12
MAX_ASKED = 64
"""Processes whose files say which file systems are asked."""
VARIETY_FRAMES = 6
_SAMPLE_GAP_S = 0.15
_BUSY_SHARE = 0.3
"""Share of a core from which on a rank counts as using the CPU, while its main thread sleeps."""
_THREAD_S = 0.004
"""More for each thread of a process: py-spy copies 1,500 stacks in 0.3 to 0.8 s, where it has a CPU for itself."""
_WORKERS = 4
_WAITING = "TtD"


class LookResult(NamedTuple):
    """What LookTaken is made of."""

    ranks: list[RankLook]
    missing: dict[int, str]
    """Ranks that could not be looked at, with the reason."""
    took_s: float
    readings: Sequence[Reading] = ()
    """Of the node."""


@dataclass
class Target:
    """One process to look at."""

    rank: Rank
    stat: Stat
    words: list[int]
    is_rank: bool
    """The rank's own process, not one below it."""
    board: BoardReader | None = None
    """The rank's."""
    raw: list[StackDump] = field(default_factory=list)
    kernel_stack: str = ""
    at_s: float = 0.0
    """When its counters were read."""
    groups: GroupsRead = field(default_factory=GroupsRead)
    standstill: Standstill = NONE
    place: Place | None = None
    """Where its main thread is, and stays while it is looked at; …"""
    runner: int = 0
    """… and the thread that runs there, 0 for none."""


class Effort(NamedTuple):
    """How hard to look."""

    deadline: float
    """time.monotonic()."""
    samples: int
    sockets_dir: str
    attempt: int
    pyspy: str | None
    calls: int
    """How many completed calls of each process group to keep."""
    table: ProcessTable
    may_pause: bool
    recorders: RecorderReaders


def limit_s(ranks: int, threads: int = 1) -> float:
    """The longest that a look at so many ranks may take: 6 s up to 8, beyond them half a second each, at most 30 s.

    threads: of the rank that has most of them; for 250 of them, a second more.
    """
    return min(30.0, 6.0 + 0.5 * max(0, ranks - 8) + _THREAD_S * threads)


def take_look(
    attempt: int,
    ranks: Sequence[Rank],
    *,
    boards: Mapping[int, BoardReader],
    clock: EngineClock,
    sockets_dir: str | os.PathLike[str],
    folder: Path | None,
    samples: int = 3,
    pyspy: str | None = None,
    write: Callable[[Callable[[], object]], object] = lambda work: work(),
    folders: Sequence[str] = (),
    may_pause: bool = False,
    recorders: RecorderReaders | None = None,
) -> LookResult:
    """Look at every rank and all below it; takes limit_s at most.

    Raw stacks go to folder, where it can be written, by way of write: it is given the work, and may do it later.
    boards are Sampler.boards. pyspy is the program to run, found where None. folders: those whose file systems are
    asked as well. may_pause: for native frames, which prove a standstill, and tell a driver from the user's own code.
    recorders: what earlier looks at these ranks know of their flight recorders; None: there was none.
    """
    began = time.monotonic()
    table = ProcessTable.read()
    found = [table.stats[rank.pid].threads for rank in ranks if rank.pid in table.stats]
    deadline = began + limit_s(len(ranks), max(found, default=1))
    calls = LAST_CALLS if len(ranks) < MANY_RANKS else LAST_CALLS_OF_MANY
    recorders = recorders or RecorderReaders()
    effort = Effort(deadline, samples, os.fspath(sockets_dir), attempt, pyspy, calls, table, may_pause, recorders)
    tcp = read_tcp_bytes()
    targets, missing = _find_targets(ranks, boards, table)
    for target in targets:
        if target.is_rank and target.board is not None and target.stat.state not in "Tt":
            recorders.of(attempt, target.rank.global_rank).ask_for_server(target.words, target.board)
    beside = Background(folders, [target.stat.pid for target in targets][:MAX_ASKED], table)
    answers = run_bounded(
        [lambda target=target: _look_at(target, clock, effort) for target in targets],  # type: ignore[misc]
        workers=_WORKERS,
        timeout_s=deadline - time.monotonic(),
    )
    if may_pause:
        NATIVE_FRAMES.look([_asker(target) for target in targets if target.runner], time.monotonic(), pyspy)
    readings, rooms = beside.wait()
    pairs = []
    for target, answer in zip(targets, answers, strict=True):
        look = (
            explain(answer, rooms.dead, beside.mounts) if isinstance(answer, ProcessLook) else _unseen(target, answer)
        )
        pairs.append((target, look))
        if target.is_rank and not isinstance(answer, ProcessLook):
            missing[target.rank.global_rank] = look.trouble
        elif target.is_rank and look.state == "?":
            missing[target.rank.global_rank] = "the process is gone"
    looks = [_join(rank, pairs, tcp, clock) for rank in ranks if rank.global_rank not in missing]
    told, odd = _ask_nccl(looks, deadline - time.monotonic())
    if folder is not None and told:
        write(lambda: write_text(folder, RAS_FILE, told))
    if folder is not None:
        raw = {target.stat.pid: (target.raw, target.kernel_stack) for target, _ in pairs}
        write(lambda: write_look(folder, looks, raw))
    return LookResult(looks, missing, time.monotonic() - began, [*readings, *odd])


def _asker(target: Target) -> Asker:
    assert target.place is not None
    order = target.words[Field.COLLECTIVES], target.words[Field.GROUP_SEQ]
    return Asker(target.stat.pid, target.stat.start, target.runner, target.place, order, target.board)


def _ask_nccl(looks: list[RankLook], left_s: float) -> tuple[str, list[Reading]]:
    """NCCL's own account of its communicators, where a rank uses it and there is time left."""
    if left_s <= 0 or not any("nccl" in group.backend for look in looks for group in look.groups):
        return "", []
    return read_ras({look.process.pid for look in looks}, limit_s=min(LIMIT_S, left_s))


def _find_targets(
    ranks: Sequence[Rank], boards: Mapping[int, BoardReader], table: ProcessTable
) -> tuple[list[Target], dict[int, str]]:
    """The ranks' processes first, so that they are seen even where time runs out, then what is below them."""
    own: list[Target] = []
    below: list[Target] = []
    missing: dict[int, str] = {}
    for rank in ranks:
        stat = table.stats.get(rank.pid)
        if stat is None:
            missing[rank.global_rank] = "the process is gone"
            continue
        board = boards.get(rank.global_rank)
        words = (board.read() if board is not None else None) or BLANK
        own.append(Target(rank, stat, words, True, board))
        for pid in table.descendants(rank.pid, MAX_CHILDREN):
            below.append(Target(rank, table.stats[pid], words, False))
    return own + below, missing


def _look_at(target: Target, clock: EngineClock, effort: Effort) -> ProcessLook:
    """Counters, then stacks, of one process."""
    pid = target.stat.pid
    pauses = PAUSES.count(pid)
    stat = read_stat(pid)
    if stat is None or stat.start != target.stat.start:
        return _unseen(target, None)
    if target.is_rank and stat.state == "S" and not collective_of(target.words):
        target.standstill = read_standstill(
            pid, effort.table, deadline=effort.deadline, pyspy=effort.pyspy, may_pause=effort.may_pause
        )
    target.at_s = clock.now()
    threads, delay_s = read_threads(pid), read_delay_s(pid)
    heart_tid = target.words[Field.HEART_TID] if target.words[Field.PID] == pid else 0
    ours = [
        thread
        for thread in threads
        # What is asked of the recorder costs CPU time and memory in the rank's own process.
        if thread.tid == heart_tid or thread.name.startswith("ZMQbg") or thread.name == RECORDER_THREAD
    ]
    wchan = read_wchan(pid) if stat.state in _WAITING else ""
    target.kernel_stack = read_kernel_stack(pid) if stat.state in _WAITING else ""
    io = read_own_io(pid) if target.is_rank else Io(read_io(pid))
    began = time.monotonic()
    dump = _dump(target, effort)
    variety = _sample(target, stat, began, dump, effort) if target.is_rank else []
    if target.is_rank and dump.source == PYSPY and len(variety) < 2 and not collective_of(target.words):
        target.place = find_place(target.words, dump.threads)
        gil_tid = next((thread.tid for thread in dump.threads if thread.owns_gil), 0)
        if target.place is not None:
            target.runner = find_runner(pid, target.place, target.words, threads, gil_tid)
    if target.is_rank and target.board is not None:
        number = target.rank.global_rank
        asked = Asked(pid, stat.state, target.words, target.board, effort.sockets_dir, effort.attempt, number)
        reader = effort.recorders.of(effort.attempt, number)
        left_s = effort.deadline - time.monotonic()
        target.groups = read_groups(asked, reader, clock, limit_s=left_s, last=effort.calls)
    elif target.is_rank:
        target.groups = GroupsRead(trouble=NO_HOOKS)
    return ProcessLook(
        pid=pid,
        ppid=stat.ppid,
        command=stat.comm if stat.state == "D" else short_command(read_cmdline(pid)) or stat.comm,
        state=stat.state,
        wchan=wchan,
        cpu_s=round(stat.cpu_s - sum(thread.cpu_s for thread in ours), 2),
        switches=sum(thread.switches for thread in threads) - sum(thread.switches for thread in ours),
        delay_s=round(delay_s, 3),
        io_bytes=io.bytes,
        beside_bytes=io.beside_bytes,
        beside_reads=io.beside_reads,
        faults=stat.faults - sum(thread.faults for thread in ours) if stat.faults >= 0 else -1,
        threads=_merge(pid, dump.threads, threads, {thread.tid for thread in ours}),
        variety=variety,
        pauses=PAUSES.count_since(pid, pauses) if target.is_rank else 0,
        native=NATIVE_FRAMES.spot(pid, stat.start, target.place),
        source=dump.source,
        trouble=dump.trouble,
    )


def _dump_limit_s(target: Target) -> float:
    return TIMEOUT_S + _THREAD_S * target.stat.threads


def _dump(target: Target, effort: Effort) -> StackDump:
    pid, words = target.stat.pid, target.words
    fallback = None
    if words[Field.PID] == pid and words[Field.DUMP_SIGNAL] > 0 and target.board is not None:
        name = f"stacks-{effort.attempt}-{target.rank.global_rank}"
        fallback = Fallback(words[Field.DUMP_SIGNAL], Path(effort.sockets_dir) / name, target.board)
    timeout_s = min(_dump_limit_s(target), effort.deadline - time.monotonic())
    dump = dump_stacks(pid, target.stat.start, fallback=fallback, timeout_s=timeout_s, pyspy=effort.pyspy)
    target.raw.append(dump)
    return dump


def _sample(target: Target, stat: Stat, began: float, first: StackDump, effort: Effort) -> list[list[Frame]]:
    """Where the main thread was, sample after sample, if the process uses the CPU; empty with fewer than two."""
    if first.source != PYSPY or effort.samples < 2 or stat.state in _WAITING:
        return []
    seen = [_innermost(first)]
    time.sleep(max(0.0, began + _SAMPLE_GAP_S - time.monotonic()))
    now = read_stat(target.stat.pid)
    if now is None:
        return []
    used = (now.cpu_s - stat.cpu_s) / (time.monotonic() - began)
    if "R" not in (stat.state, now.state) and used < _BUSY_SHARE:
        return []
    for number in range(1, effort.samples):
        time.sleep(max(0.0, began + number * _SAMPLE_GAP_S - time.monotonic()))
        if time.monotonic() > effort.deadline - _dump_limit_s(target):
            break
        dump = _dump(target, effort)
        if dump.source == PYSPY:
            seen.append(_innermost(dump))
    stacks = [stack for stack in seen if stack]
    if len(stacks) < 2:
        return []
    return [stack for index, stack in enumerate(stacks) if stack not in stacks[:index]]


def _innermost(dump: StackDump) -> list[Frame]:
    return next((thread.frames[:VARIETY_FRAMES] for thread in dump.threads if thread.is_main), [])


def _merge(pid: int, dumped: list[ThreadLook], stats: list[ThreadStat], ours: set[int]) -> list[ThreadLook]:
    """Stacks with counters, the main thread first, without our own threads; bounded."""
    counters = {thread.tid: thread for thread in stats}
    merged = []
    theirs = [thread for thread in dumped if thread.is_main or not _is_ours(thread, ours)]
    for thread in sorted(theirs, key=lambda thread: (not thread.is_main, not thread.owns_gil))[:MAX_THREADS]:
        stat = counters.get(thread.tid)
        io = IoCounts() if thread.is_main else read_io_counts(f"/proc/{pid}/task/{thread.tid}/io") or IoCounts()
        merged.append(
            ThreadLook(
                tid=thread.tid,
                name=thread.name or (stat.name if stat else ""),
                is_main=thread.is_main,
                owns_gil=thread.owns_gil,
                cpu_s=stat.cpu_s if stat else 0.0,
                switches=stat.switches if stat else 0,
                is_timed=not thread.is_main and is_timed(read_call(pid, thread.tid), os.uname().machine),
                read_bytes=io.rchar,
                reads=io.syscr,
                frames=thread.frames,
            )
        )
    return merged


def _is_ours(thread: ThreadLook, ours: set[int]) -> bool:
    return thread.tid in ours or any("/guardrun/hooks/" in frame.file for frame in thread.frames)


def _unseen(target: Target, error: BaseException | None) -> ProcessLook:
    """A process that there was no time for, or that vanished meanwhile: what the first pass showed of it."""
    now = read_stat(target.stat.pid)
    is_gone = now is None or now.start != target.stat.start
    reason = f"{type(error).__name__}: {error}" if error is not None else "no time was left"
    return ProcessLook(
        pid=target.stat.pid,
        ppid=target.stat.ppid,
        command=target.stat.comm,
        state="?" if now is None or is_gone else now.state,
        cpu_s=target.stat.cpu_s,
        trouble="the process is gone" if is_gone else reason,
    )


def _join(
    rank: Rank, pairs: list[tuple[Target, ProcessLook]], tcp: dict[int, int] | None, clock: EngineClock
) -> RankLook:
    own = [(target, look) for target, look in pairs if target.rank is rank]
    target, process = next(pair for pair in own if pair[0].is_rank)
    words = target.words
    at_ns = clock.at_ns
    data_share, gc_share = shares_of(words, age_s(target.stat), time.monotonic_ns())
    return RankLook(
        global_rank=rank.global_rank,
        at_s=target.at_s or clock.now(),
        process=process,
        children=[look for below, look in own if not below.is_rank],
        socket_bytes=socket_bytes([below.stat.pid for below, _ in own], tcp),
        heart_s=at_ns(words[Field.HEART_NS]),
        in_collective=collective_of(words),
        collective_since_s=at_ns(words[Field.COLLECTIVE_SINCE_NS]),
        collectives=words[Field.COLLECTIVES],
        group_seq=words[Field.GROUP_SEQ],
        in_init_since_s=at_ns(words[Field.INIT_SINCE_NS]),
        in_data_since_s=at_ns(words[Field.DATA_SINCE_NS]),
        in_save_since_s=at_ns(words[Field.SAVE_SINCE_NS]),
        gc_since_s=at_ns(words[Field.GC_SINCE_NS]),
        milestones=words[Field.MILESTONES],
        phase=phase_of(words),
        batches=words[Field.BATCHES],
        data_share=data_share,
        gc_share=gc_share,
        standstill=target.standstill.why,
        standstill_key=target.standstill.key,
        groups=target.groups.groups,
        groups_trouble=target.groups.trouble,
        device_counts=target.groups.counts,
        is_unread=target.groups.is_unread,
    )
