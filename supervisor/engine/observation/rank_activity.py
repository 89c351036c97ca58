"""What one rank is doing, judged from two looks at it.

The rules, strongest evidence first:
- a process state (T, t, D) is a fact;
- a collection under way and a silent hooks' thread are facts that shared memory shows whatever the GIL does;
- a stack that ends in torch's communication waits for others, however much CPU it burns doing so;
- otherwise the rank is judged by what moved between the looks: frames, bytes, CPU time, its children.
Somebody who gets anywhere is BUSY, and as long as anybody is, nothing is a hang.

One module, as the rules are one order: whoever changes one has to see those before it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from guardrun.supervisor.engine.model.looks import PYSPY, Frame, Library, ProcessLook, RankLook, ThreadLook
from guardrun.supervisor.engine.observation import frames as fr
from guardrun.supervisor.engine.observation.collective_calls import runs_on_device
from guardrun.supervisor.engine.observation.dataloader_workers import (
    cannot_deliver,
    clause,
    mount_words,
    workers_of,
)
from guardrun.supervisor.engine.observation.device_counts import gets_on


class RankActivity(str, Enum):
    """What a rank was seen to do; the comment says what the policy makes of it."""

    STOPPED = "stopped"
    """Stopped by a signal (T): proof."""
    TRACED = "traced"
    """Stopped by a debugger (t): proof, but somebody may be looking."""
    COLLECTING = "collecting"
    """In a garbage collection: ends by itself as a rule."""
    GIL_HELD = "gil_held"
    """Its other threads cannot run: some C code keeps the GIL."""
    IO_BLOCKED = "io_blocked"
    """In uninterruptible wait (D) without a byte moving."""
    WAITING = "waiting"
    """In a collective, a barrier or a rendezvous: waits for others."""
    DATA = "data"
    """Waits for DataLoader workers that do nothing."""
    IDLE = "idle"
    """Blocked in the same frame, no CPU, no bytes."""
    SPINNING = "spinning"
    """Running in the same few lines."""
    BUSY = "busy"
    """Frames change, bytes move, children work: getting somewhere."""
    CHURNING = "churning"
    """CPU is used, or memory touched, in a way that neither shows nor rules out progress: perhaps getting somewhere."""
    LEAVING = "leaving"
    """Its script has come to its end, but the process lingers."""
    UNLOOKED = "unlooked"
    """It could not be looked at: nothing is known."""
    UNSEEN = "unseen"
    """No stack could be taken; and it does not run."""
    GONE = "gone"
    """Dead or dying: its exit will be told."""


STUCK = frozenset(
    {
        RankActivity.STOPPED,
        RankActivity.TRACED,
        RankActivity.COLLECTING,
        RankActivity.GIL_HELD,
        RankActivity.IO_BLOCKED,
        RankActivity.DATA,
        RankActivity.IDLE,
        RankActivity.SPINNING,
        RankActivity.UNSEEN,
    }
)
"""Those that others may be waiting for."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's verdict, with its reason in words and its place in the user's code."""

    global_rank: int
    doing: RankActivity
    reason: str
    place: str = ""
    spot: str = ""
    waits_in: str = ""
    """For WAITING: the function it waits in."""
    is_in_init: bool = False
    is_moving: bool = False
    """For WAITING: bytes move, or children work, all the same (a save in the background)."""
    is_held_by_device: bool = False
    """For BUSY: all that is seen is that its device works; its main thread has been in one place in all samples."""
    is_in_long_work: bool = False
    """It is saving, or its script has said that it is evaluating, loading or the like."""
    order: int = 0
    """How far it is in the order of collectives: more is further."""
    is_in_doubt: bool = False
    """For IDLE: a process below it uses a little of the CPU, as a slow one at work may, or one that polls."""
    is_awake: bool = False
    """For IDLE: its main thread wakes up now and then, as one that polls, retries or runs an event loop does; or, where
    it waits for processes of its own, one of these does."""
    is_native: bool = False
    """For GIL_HELD and SPINNING: what runs is native code, called from there. A fit, a search, a parse looks so."""
    device_wait: str = ""
    """That its native code is a device's driver or NCCL, as a clause (`for its GPU in …`); empty where it is not,
    where that was not seen, and for any but SPINNING, GIL_HELD, IDLE and CHURNING. For whom its device waits, if for
    anybody, this does not say."""
    is_in_own_code: bool = False
    """Its native frames were read, and are none of a driver's or NCCL's."""
    is_starved: bool = False
    """It is ready to run, and gets little of a core: the node is busy."""
    detail: str = ""
    """For DATA: what its workers do (`DataLoader worker 4711 is in …`). For IO_BLOCKED: what it waits for."""
    is_broken: bool = False
    """For DATA: a worker is dead or stopped, so that no batch will come from it."""
    proof: str = ""
    """Why nothing is left that could end its wait, as a clause; empty where something may."""
    is_unread: bool = False
    """What it has issued to its device is known by its hooks alone, and nothing of what that does."""


_LINGERING = frozenset(
    {
        RankActivity.WAITING,
        RankActivity.DATA,
        RankActivity.IDLE,
        RankActivity.UNSEEN,
        RankActivity.IO_BLOCKED,
        RankActivity.GIL_HELD,
        RankActivity.SPINNING,
    }
)
"""What a process may do for ever after its script has ended, without its being anybody's hang."""
IN_DRIVER = frozenset({RankActivity.SPINNING, RankActivity.GIL_HELD, RankActivity.IDLE, RankActivity.CHURNING})
"""How a rank may look while it waits in a device's driver: in a launch on a full queue it may keep the GIL."""
_FAULTING = frozenset({RankActivity.GIL_HELD, RankActivity.IO_BLOCKED, RankActivity.SPINNING})

HEART_STALE_S = 4.0
"""Hooks beat once a second; the GIL changes hands every 5 ms. Four missed beats are no scheduling accident."""
QUIET_CPU = 0.1
"""Share of a core below which a process is idle: polling loops with short sleeps stay below it."""
QUIET_IO_BYTES_S = 16 * 1024
"""Above this, bytes move: the hooks' own thread and a store's keep-alives stay two orders below it."""
QUIET_SOCKET_BYTES_S = 4 * 1024
SMALL_READ_BYTES = 2048
"""What a read of a file in /proc returns at most, on average: its end is a read, too, and most are short. Data
is read in larger pieces; SQLite's pages have 4096."""
MONITOR_BYTES_S = 128 * 1024
"""What a thread that sleeps on a timer reads at most to be taken for a monitor: /proc/stat of a node with hundreds of
CPUs comes in one piece, of tens of KiB."""
QUIET_SWITCHES_S = 2
"""Context switches a second of a process in which everything waits, but for a timer or two."""
QUIET_FAULTS_S = 200
"""Page faults a second: a loop that goes nowhere touches no new memory, and a blocked process none."""
_LONG_PHASES = ("eval", "save", "load", "compile", "other")
"""Phases that a script (or, for loads, a hook) names: it has said that it is not training now."""
STARVED_CPU = 0.4
IDLE_CHILD_CPU = 0.02
FEW_PLACES = 2
"""Functions of the user's own in which a loop that goes nowhere is seen: its own, and one that it asks."""
BUSY_STACKS = 6
"""As many different stacks of functions as such a loop does not show, in two looks or in all of a silence: what it
calls of the standard library is counted too (os.environ.get is four deep)."""
WORKING_STACKS = 4
"""The same for a loop that calls installed packages."""
DEVICE_WORKS = "its device works"
FRAMES_CHANGE = "its frames change, in code of its own"
"""The reason for which a rank that runs, and shows nothing else, counts as busy: more looks may tell otherwise."""


def sampled(look: RankLook, *, is_own: bool = False) -> list[str]:
    """Where the main thread of a rank was each time a look sampled it, without line numbers.

    is_own: by the user's own functions alone; empty where a sample, which may be cut short, shows none.
    """
    stacks = [stack for stack in [fr.active_stack(look.process.threads), *look.process.variety] if stack]
    if is_own:
        stacks = [[frame for frame in stack if fr.is_users(frame)] for stack in stacks]
    return [" < ".join(fr.functions(stack)[:6]) for stack in stacks]


def own_spots(look: RankLook) -> list[str]:
    """`load (data.py:12)`: the user's own lines that the same samples show, one each."""
    stacks = [
        stack
        for stack in [fr.active_stack(look.process.threads), *look.process.variety]
        if any(map(fr.is_users, stack))
    ]
    return [fr.spot(stack) for stack in stacks]


def unlooked(global_rank: int, reason: str) -> Judgement:
    """The judgement on a living rank that a look does not show."""
    return Judgement(
        global_rank=global_rank,
        doing=RankActivity.UNLOOKED,
        reason=f"could not be looked at: {reason or 'not told why'}",
    )


def judge(before: RankLook, after: RankLook, *, has_ended: bool = False) -> Judgement:
    """Judge a rank by two looks, the later one deciding what it does now. has_ended: its script has.

    Raises ValueError where they are of different ranks or in the wrong order.
    """
    if before.global_rank != after.global_rank or after.at_s <= before.at_s:
        raise ValueError(f"looks at ranks {before.global_rank} and {after.global_rank}, in the wrong order")
    stack = fr.active_stack(after.process.threads)
    doing, reason = _doing(before, after, stack)
    workers = workers_of(after, before) if doing is RankActivity.DATA else []
    if has_ended and doing in _LINGERING:
        doing, reason = RankActivity.LEAVING, f"its script has ended, and the process {reason}"
    device_wait = _device_wait(before, after, stack) if doing in IN_DRIVER else ""
    return Judgement(
        global_rank=after.global_rank,
        doing=doing,
        reason=f"waits {device_wait}" if device_wait else reason,
        place=fr.place(stack),
        spot=fr.spot(stack),
        waits_in=_waits_in(after, stack) if doing is RankActivity.WAITING else "",
        is_in_init=bool(after.in_init_since_s) or fr.waits_in_init(stack),
        is_moving=doing is RankActivity.WAITING and bool(_bytes_move(before, after) or _children_work(before, after)),
        is_held_by_device=reason == DEVICE_WORKS and len({*sampled(before), *sampled(after)}) == 1,
        is_in_long_work=bool(after.in_save_since_s) or after.phase in _LONG_PHASES,
        order=max(after.group_seq, after.collectives),
        is_in_doubt=doing is RankActivity.IDLE and _children_cpu(before, after) > IDLE_CHILD_CPU,
        is_awake=doing is RankActivity.IDLE
        and (_wakes_up(before, after) or (fr.waits_for_process(stack) and _children_wake(before, after))),
        is_native=_computes_natively(doing, before, after),
        device_wait=device_wait,
        is_in_own_code=after.process.native is not None and after.process.native.family is Library.OTHER,
        is_starved=after.process.state == "R" and _cpu(before, after) < STARVED_CPU,
        detail=mount_words(after.process) if doing is RankActivity.IO_BLOCKED else clause(workers),
        is_broken=cannot_deliver(workers, before),
        is_unread=after.is_unread,
        proof=_proof(before, after) if doing in (RankActivity.IDLE, RankActivity.DATA) else "",
    )


def _doing(before: RankLook, after: RankLook, stack: list[Frame]) -> tuple[RankActivity, str]:
    state = after.process.state
    if state in "ZX?":
        return RankActivity.GONE, "the process is gone"
    if state == before.process.state == "t" and (before.process.pauses % 2 or after.process.pauses % 2):
        return RankActivity.CHURNING, "was paused by guardrun itself, to read its native frames"
    if state in "Tt" and state == before.process.state and after.process.switches == before.process.switches:
        # Equal switches: it has not been let run in between, as programs that limit the CPU do.
        if state == "T":
            return RankActivity.STOPPED, "the process is stopped by a signal (state T)"
        return RankActivity.TRACED, "the process is stopped by a debugger (state t)"
    if after.gc_since_s:
        return (
            RankActivity.COLLECTING,
            f"a garbage collection has been running for {after.at_s - after.gc_since_s:.1f} s",
        )
    if after.collectives > before.collectives or after.group_seq > before.group_seq:
        return RankActivity.BUSY, "its collectives advance"
    if after.device_counts and gets_on(before.device_counts, after.device_counts):
        return RankActivity.BUSY, "its device completes collectives"
    if _is_waiting(before, after, stack):
        return RankActivity.WAITING, f"waits in {_waits_in(after, stack)}"
    moving = _bytes_move(before, after) or _children_work(before, after)
    if not moving and after.gpu_busy > 0.5 and before.gpu_busy > 0.5:
        moving = DEVICE_WORKS
    if not moving and fr.is_debugged(stack):
        moving = "somebody debugs it"
    if moving:
        return RankActivity.BUSY, moving
    doing, reason = _standing(before, after, stack)
    if doing in _FAULTING and faults_s(before, after) > QUIET_FAULTS_S:
        # Parsing a huge file holds the GIL, loading a library from a slow disk is state D: both touch new memory.
        return RankActivity.CHURNING, f"touches {faults_s(before, after):.0f} new pages a second, and {reason}"
    return doing, reason


def _standing(before: RankLook, after: RankLook, stack: list[Frame]) -> tuple[RankActivity, str]:
    """Judge a rank of which nothing is seen to move from outside."""
    if _is_gil_held(before, after):
        if not after.heart_s:
            return RankActivity.GIL_HELD, "its main thread sleeps and keeps the GIL meanwhile"
        return (
            RankActivity.GIL_HELD,
            f"no other thread of it has run for {after.at_s - after.heart_s:.0f} s: the GIL is held",
        )
    if after.process.state == before.process.state == "D" or (before.process.dead_mount and after.process.dead_mount):
        return RankActivity.IO_BLOCKED, f"in uninterruptible wait (state D, {after.process.wchan or 'unknown'})"
    return _by_stack(before, after, stack)


def _is_waiting(before: RankLook, after: RankLook, stack: list[Frame]) -> bool:
    """Whether it waits for others: not where it computes here and there, as in pickling what is to be sent.

    Where no hooks count collectives, CPU and bytes must say that it is still there; likewise in a wrapper of torch's.
    """
    if _cpu(before, after) > QUIET_CPU and len({*sampled(before), *sampled(after)}) > 1:
        return False
    if after.in_collective:
        return True
    found = fr.communication(stack)
    if not found:
        return False
    is_counted = after.heart_s > 0 and fr.is_call_of_others(found[0])
    return is_counted or (_cpu(before, after) <= QUIET_CPU and not _bytes_move(before, after))


def _is_gil_held(before: RankLook, after: RankLook) -> bool:
    if not after.heart_s:
        # No hooks. What blocks lets go of the GIL first, but for C code that doesn't.
        is_asleep = before.process.state == after.process.state == "S" and _cpu(before, after) <= QUIET_CPU
        return is_asleep and _owns_gil(before.process) and _owns_gil(after.process)
    return (
        after.heart_s > 0
        and after.heart_s == before.heart_s
        and after.at_s - after.heart_s > HEART_STALE_S
        and after.process.state in "RS"
    )


def _computes_natively(doing: RankActivity, before: RankLook, after: RankLook) -> bool:
    """Whether native code runs that Python has called: it keeps the GIL all the time, or it has let go of it.

    A loop in Python holds it nearly always, and hands it on every 5 ms. Who waits for a device (`loss.item()`) runs in
    native code as well, and does not compute; torch lets go of the GIL for that.
    """
    processes = (before.process, after.process)
    # Not by how much it uses: on a node that is busy besides it may be little. One look may have met a process that
    # our own py-spy has stopped just then.
    states = {process.state for process in processes}
    if "R" not in states or not states <= {"R", "t"}:
        return False
    if doing is RankActivity.GIL_HELD:
        return True
    if doing not in (RankActivity.SPINNING, RankActivity.IDLE):
        return False
    if any(runs_on_device(group.backend) for group in after.groups) or after.gpu_busy >= 0:
        return False
    return all(process.source == PYSPY and not _owns_gil(process) for process in processes)


def _device_wait(before: RankLook, after: RankLook, stack: list[Frame]) -> str:
    """`for its GPU in cuStreamSynchronize (libcuda.so.1), called from train.py:41`; empty where it does not."""
    spot = after.process.native
    if spot is None or spot.family is Library.OTHER or after.standstill or faults_s(before, after) > QUIET_FAULTS_S:
        return ""
    whom = {Library.NCCL: "", Library.LEVEL_ZERO: "for its device "}.get(spot.family, "for its GPU ")
    where = f"{spot.function} ({spot.library})" if spot.function else spot.library
    frame = fr.user_frame(stack)
    return f"{whom}in {where}" + (f", called from {fr.base_name(frame.file)}:{frame.line}" if frame else "")


def _owns_gil(process: ProcessLook) -> bool:
    return any(thread.is_main and thread.owns_gil for thread in process.threads)


def _cpu(before: RankLook, after: RankLook) -> float:
    """Cores used."""
    return (after.process.cpu_s - before.process.cpu_s) / (after.at_s - before.at_s)


def _wanted_cpu(before: RankLook, after: RankLook, cpu: float) -> float:
    """Cores it would use on a node that is not busy besides: what it used of the time in which it was not kept waiting.

    Who works half of the time is given next to nothing of a crowded node's cores; who polls wants as little there.
    """
    seconds = after.at_s - before.at_s
    kept_s = min(max(0.0, after.process.delay_s - before.process.delay_s), 0.99 * seconds)
    return cpu * seconds / (seconds - kept_s)


def faults_s(before: RankLook, after: RankLook) -> float:
    """Page faults a second; 0 where they are not known."""
    if before.process.faults < 0 or after.process.faults < 0:
        return 0.0
    return (after.process.faults - before.process.faults) / (after.at_s - before.at_s)


def _bytes_move(before: RankLook, after: RankLook) -> str:
    """What it reads, writes, sends or receives, in words; empty where nothing worth telling."""
    seconds = after.at_s - before.at_s
    old, new = before.process, after.process
    timed_bytes, timed_reads = _read_on_timers(before, after)
    small = SMALL_READ_BYTES * (new.beside_reads - old.beside_reads - timed_reads)
    beside = max(0, new.beside_bytes - old.beside_bytes - timed_bytes - small)
    io_rate = (new.io_bytes - old.io_bytes + beside) / seconds
    if io_rate > QUIET_IO_BYTES_S:
        return f"reads and writes {io_rate / 1024:.0f} KiB a second"
    if before.socket_bytes >= 0 and after.socket_bytes >= 0:
        rate = (after.socket_bytes - before.socket_bytes) / seconds
        if rate > QUIET_SOCKET_BYTES_S:
            return f"{rate / 1024:.0f} KiB a second move through its sockets"
    return ""


def _read_on_timers(before: RankLook, after: RankLook) -> tuple[int, int]:
    """Bytes that threads have read that slept on a timer in one of two looks, if not much, and in how many calls."""
    known = {thread.tid: thread for thread in before.process.threads if thread.reads}
    most = MONITOR_BYTES_S * (after.at_s - before.at_s)
    pairs = [(known[new.tid], new) for new in after.process.threads if new.tid in known and new.reads]
    monitors = [
        (new.read_bytes - old.read_bytes, new.reads - old.reads)
        for old, new in pairs
        if (old.is_timed or new.is_timed) and new.read_bytes - old.read_bytes <= most
    ]
    return sum(size for size, _ in monitors), sum(count for _, count in monitors)


def _children_cpu(before: RankLook, after: RankLook) -> float:
    """Cores that the processes below it used."""
    known = {child.pid: child.cpu_s for child in before.children}
    used_s = sum(child.cpu_s - known[child.pid] for child in after.children if child.pid in known)
    return used_s / (after.at_s - before.at_s)


def _children_work(before: RankLook, after: RankLook) -> str:
    """What processes below it do, in words; empty where nothing."""
    seconds = after.at_s - before.at_s
    known = {child.pid: child for child in before.children}
    for child in after.children:
        old = known.get(child.pid)
        if old is None:
            return f"started process {child.pid} ({child.command[:60]})"
        if (child.io_bytes - old.io_bytes) / seconds > QUIET_IO_BYTES_S:
            return f"its process {child.pid} ({child.command[:60]}) reads and writes"
        if (child.cpu_s - old.cpu_s) / seconds > QUIET_CPU:
            return f"its process {child.pid} ({child.command[:60]}) computes"
    if len(known) > len(after.children):
        return "a process of its own has just ended"
    return ""


def _by_stack(before: RankLook, after: RankLook, stack: list[Frame]) -> tuple[RankActivity, str]:
    cpu = _cpu(before, after)
    old = fr.active_stack(before.process.threads)
    if not stack:
        if after.heart_s == 0 and after.process.switches - before.process.switches > QUIET_SWITCHES_S * (
            after.at_s - before.at_s
        ):
            # Neither hooks nor stacks: a program that is no Python, say. Nothing could ever show that it gets on.
            return RankActivity.BUSY, "its threads run, and nothing more can be seen of it"
        if cpu > QUIET_CPU:
            return RankActivity.CHURNING, "runs, and no stack of it could be taken"
        return RankActivity.UNSEEN, after.process.trouble or "no stack of it could be taken"
    is_same = bool(old) and fr.functions(old) == fr.functions(stack)
    # On a node that is busy besides, one that would run may use next to nothing.
    is_ready = before.process.state == after.process.state == "R"
    if _wanted_cpu(before, after, cpu) <= QUIET_CPU and not is_ready:
        return _quiet(before, after, stack, is_same)
    if fr.is_in_backward(stack) and is_same:
        return RankActivity.CHURNING, "computes in the backward pass"
    stacks = [
        s for look in (before, after) for s in [fr.active_stack(look.process.threads), *look.process.variety] if s
    ]
    count = len({*sampled(before), *sampled(after)})
    if any(fr.calls_packages(s) for s in stacks):
        # An evaluation runs in a few lines of the user's code too: as long as it calls into torch, it may be one.
        is_working = count >= WORKING_STACKS
        return (
            (RankActivity.BUSY, "its frames change") if is_working else (RankActivity.CHURNING, "computes in one place")
        )
    main_cpu = _main_cpu(before, after)
    if main_cpu is not None and _wanted_cpu(before, after, main_cpu) <= QUIET_CPU and not is_ready:
        return RankActivity.CHURNING, "its main thread stands still while others of its threads compute"
    if len({fr.place(s) for s in stacks}) <= FEW_PLACES and count < BUSY_STACKS:
        return RankActivity.SPINNING, f"uses {cpu:.0%} of a core in the same few lines"
    return RankActivity.BUSY, FRAMES_CHANGE


def _quiet(before: RankLook, after: RankLook, stack: list[Frame], is_same: bool) -> tuple[RankActivity, str]:
    if fr.is_in_backward(stack):
        return RankActivity.WAITING, "waits in the backward pass"
    if fr.waits_for_data(stack) or (after.in_data_since_s and after.in_data_since_s == before.in_data_since_s):
        return RankActivity.DATA, "waits for data, and nobody prepares any"
    if is_same or fr.place(stack) == fr.place(fr.active_stack(before.process.threads)):
        return RankActivity.IDLE, "is in the same frame, uses no CPU and moves no bytes"
    return RankActivity.BUSY, "its frames change"


def _main_cpu(before: RankLook, after: RankLook) -> float | None:
    old, new = _main_thread(before.process), _main_thread(after.process)
    if old is None or new is None or not new.cpu_s:
        return None
    return (new.cpu_s - old.cpu_s) / (after.at_s - before.at_s)


def _wakes_up(before: RankLook, after: RankLook) -> bool:
    """Whether its main thread has run in between: each time it goes to sleep is a context switch.

    Stacks that are read from outside wake nobody; a pause does, and what is asked of the process itself (faulthandler).
    """
    old, new = _main_thread(before.process), _main_thread(after.process)
    if old is None or new is None or not old.switches or before.process.source != PYSPY:
        return False
    if after.process.pauses != before.process.pauses or after.process.pauses % 2:
        return False
    return new.switches > old.switches


def _children_wake(before: RankLook, after: RankLook) -> bool:
    known = {child.pid: child for child in before.children}
    return any(child.pid in known and child.switches > known[child.pid].switches for child in after.children)


def _proof(before: RankLook, after: RankLook) -> str:
    """Why nothing could end its wait, where both looks show the same."""
    is_same = bool(after.standstill_key) and after.standstill_key == before.standstill_key
    return after.standstill if is_same and not _wakes_up(before, after) else ""


def _main_thread(process: ProcessLook) -> ThreadLook | None:
    return next((thread for thread in process.threads if thread.is_main), None)


def _waits_in(look: RankLook, stack: list[Frame]) -> str:
    """The communication function nearest to the user's code, as a user would name it."""
    if look.in_collective:
        return look.in_collective
    inner = fr.communication(stack)
    inner = [frame for frame in inner if fr.is_call_of_others(frame)] or inner
    # The wrappers are torch's loggers around each function.
    named = [name for f in inner if (name := fr.last_name(f)) != "wrapper"]
    return named[-1] if named else "the backward pass" if fr.is_in_backward(stack) else "a collective"
