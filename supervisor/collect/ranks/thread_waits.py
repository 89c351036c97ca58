"""What every thread of a rank and of its descendants waits for, by its system call (engine/observation/deadlock.py).

Asked only of a rank that sleeps in a call without a time limit. The last word is py-spy's with native frames: a lock of
Python's shows PyThread_acquire_lock on the stack, a library's own does not. That pauses the process for a moment, so
it is asked once for the same wait, beside the looks, and of a rank that waits for others never.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from guardrun.supervisor.collect.host.process_table import ProcessTable, is_of_user
from guardrun.supervisor.collect.host.procfs import (
    Stat,
    read_bytes,
    read_call,
    read_stat,
    read_status,
    read_threads,
)
from guardrun.supervisor.collect.host.socket_traffic import read_unix_peers
from guardrun.supervisor.collect.ranks.pauses import PAUSES
from guardrun.supervisor.collect.ranks.stack_dumps import NATIVE_S, TIMEOUT_S, dump_pyspy
from guardrun.supervisor.engine.model.looks import Frame
from guardrun.supervisor.engine.observation.deadlock import Waiter, Waits, is_closed, is_monitor, key, may_go_on, why
from guardrun.supervisor.engine.observation.frames import communication, is_in_backward

MAX_PROCESSES = 32
MAX_THREADS = 1024
SCAN_S = 1.0
"""For finding out who holds the other ends."""
TRIES = 2
_MOST_ANSWERS = 4096
MAX_MONITORS = 8
"""Threads that seem to go on, and may yet be of guardrun's hooks or of a progress bar: more are not looked into."""
_LOCK_FRAMES = ("PyThread_acquire_lock", "_PySemaphore_", "PyMutex_Lock", "_PyParkingLot_Park")
_NATIVE_DEPTH = 12
_ALARMS = (14, 26, 27)
"""SIGALRM, SIGVTALRM, SIGPROF: a handler of theirs interrupts whatever waits, at a time that nobody sees."""


class _Calls(NamedTuple):
    """Numbers of system calls (asm/unistd_64.h, asm-generic/unistd.h)."""

    futex: int
    reads: frozenset[int]
    """read, readv, recvfrom, recvmsg: the first argument is the descriptor."""
    waits: frozenset[int]
    """wait4, waitid."""


_CALLS = {
    "x86_64": _Calls(202, frozenset((0, 19, 45, 47)), frozenset((61, 247))),
    "aarch64": _Calls(98, frozenset((63, 65, 207, 212)), frozenset((260, 95))),
}
_FUTEX_PRIVATE, _FUTEX_COMMAND = 128, 127
_FUTEX_WAITS = (0, 9)
"""FUTEX_WAIT, FUTEX_WAIT_BITSET."""


_Lock: TypeAlias = tuple[int, int, str]
"""(pid, thread, address) of what seems to be a lock."""


class Standstill(NamedTuple):
    """As RankLook has it."""

    why: str = ""
    key: str = ""


NONE = Standstill()


class Call(NamedTuple):
    """What a thread is in, of /proc/PID/task/TID/syscall."""

    waits: Waits
    fd: int = -1
    on: str = ""


OPEN = Call(Waits.OPEN)


def parse_call(text: str, machine: str) -> Call:
    """A thread's wait; OPEN where it runs, has a time limit, or is in a call that is not known."""
    calls, words = _CALLS.get(machine), text.split()
    if calls is None or len(words) < 7 or not words[0].isdigit():
        return OPEN
    try:
        number, arguments = int(words[0]), [int(word, 16) for word in words[1:7]]
    except ValueError:
        return OPEN
    if number == calls.futex:
        address, operation, _, timeout = arguments[:4]
        is_untimed = operation & _FUTEX_COMMAND in _FUTEX_WAITS and not timeout
        # Without the flag it is in shared memory, and another process may wake it.
        return Call(Waits.LOCK, on=words[1]) if is_untimed and operation & _FUTEX_PRIVATE and address else OPEN
    if number in calls.reads:
        return Call(Waits.PIPE, fd=arguments[0], on=words[1])
    return Call(Waits.CHILD, on=words[1]) if number in calls.waits else OPEN


def read_standstill(
    pid: int, table: ProcessTable, *, deadline: float, pyspy: str | None = None, may_pause: bool = True
) -> Standstill:
    """Whether a rank stands still for ever. deadline: time.monotonic(). may_pause: it, for native frames.

    Never raises because something vanished: then nothing is said.
    """
    machine, pauses = os.uname().machine, PAUSES.count(pid)
    if parse_call(read_call(pid, pid), machine).waits is Waits.OPEN or _has_alarm(pid):
        return NONE
    found = table.stats.get(pid)
    if found is None or found.threads > MAX_THREADS:
        return NONE
    pids = [pid, *table.descendants(pid, MAX_PROCESSES + 1)]
    if len(pids) > MAX_PROCESSES:
        return NONE
    waiters = _read_waiters(pids, machine, table, deadline)
    if sum(map(may_go_on, waiters)) > MAX_MONITORS:
        return NONE
    left_s = min(TIMEOUT_S, deadline - time.monotonic())
    stacks = {t.tid: t.frames for t in dump_pyspy(pid, timeout_s=left_s, program=pyspy).threads} if left_s > 0 else {}
    waiters = _with_frames(waiters, pid, stacks)
    if not is_closed(waiters, pid) or communication(stacks.get(pid, [])) or is_in_backward(stacks.get(pid, [])):
        return NONE
    locks = frozenset(
        (one.pid, one.tid, one.on)
        for one in waiters
        if one.waits is Waits.LOCK and not one.is_monitor and (one.is_python or one.pid != pid)
    )
    if not NATIVE.ask(pid, locks, pyspy, may_pause=may_pause):
        return NONE
    if PAUSES.count(pid) != pauses:
        return NONE  # it was paused since: the next look's would be another standstill, by its counters
    return Standstill(why(waiters, pid), key(waiters))


def _with_frames(waiters: list[Waiter], pid: int, stacks: Mapping[int, list[Frame]]) -> list[Waiter]:
    """The rank's threads that run Python marked as such, and those of them that only look after something."""
    return [
        msgspec.structs.replace(
            one,
            is_python=one.tid in stacks,
            is_monitor=is_monitor(stacks.get(one.tid, [])),
        )
        if one.pid == pid
        else one
        for one in waiters
    ]


def _has_alarm(pid: int) -> bool:
    status = read_status(pid)
    return status is None or any(status.catches(signum) for signum in _ALARMS)


def _read_waiters(pids: list[int], machine: str, table: ProcessTable, deadline: float) -> list[Waiter]:
    ends = _Ends(pids, table, min(deadline, time.monotonic() + SCAN_S))
    return [waiter for pid in pids for waiter in _waiters(pid, machine, ends)]


def _waiters(pid: int, machine: str, ends: _Ends) -> list[Waiter]:
    """A process's threads; none of one that is dead. What may not be looked into may go on."""
    stat = read_stat(pid)
    if stat is None or stat.is_dead:
        return []
    threads = read_threads(pid)
    if stat.state == "T":
        # As programs that limit the CPU stop it, it is let run in between: its counters tell.
        switches = sum(thread.switches for thread in threads)
        return [Waiter(pid=pid, tid=pid, name=stat.comm, waits=Waits.STOPPED, switches=switches)]
    if not threads or len(threads) > MAX_THREADS:
        return [Waiter(pid=pid, tid=pid, name=stat.comm, waits=Waits.OPEN)]
    found = []
    for thread in threads:
        call = parse_call(read_call(pid, thread.tid), machine) if thread.state == "S" else OPEN
        if call.waits is Waits.PIPE and not ends.are_held_here(pid, call.fd):
            call = OPEN
        found.append(
            Waiter(
                pid=pid,
                tid=thread.tid,
                name=thread.name,
                waits=call.waits,
                on=call.on,
                switches=thread.switches,
            )
        )
    return found


def _are_pythons(locks: Collection[_Lock], pyspy: str | None) -> bool | None:
    """Whether what these threads wait for are locks of Python's, by their native frames; None where that is not told.

    A library's own wait (for a device, a future) looks the same from the kernel, and ends by other means. A thread
    that runs no Python waits for work, or for one that does.
    """
    for pid in sorted({pid for pid, _, _ in locks}):
        dump = dump_pyspy(pid, timeout_s=NATIVE_S, native=True, program=pyspy)
        if dump.trouble:
            return None
        tids = {tid for process, tid, _ in locks if process == pid}
        for thread in dump.threads:
            if thread.tid in tids and not any(_is_lock(frame.function) for frame in thread.frames[:_NATIVE_DEPTH]):
                return False
    return True


def _is_lock(function: str) -> bool:
    return function.startswith(_LOCK_FRAMES)


class _Answer(msgspec.Struct):
    """What a rank was last paused for."""

    locks: frozenset[_Lock]
    are_pythons: bool | None = None
    """None: not told yet, or it could not be, as where the machine was too busy."""
    tries: int = 0
    is_asking: bool = False


class Native:
    """Asks py-spy for native frames beside the looks, one rank at a time: a library's symbols take seconds to read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[int, _Answer] = {}

    def ask(
        self, pid: int, locks: frozenset[_Lock], pyspy: str | None = None, *, may_pause: bool = True
    ) -> bool | None:
        """Whether these are locks of Python's; None where that is not known, or not yet: another look will have it."""
        if not locks:
            return True
        with self._lock:
            known = self._answers.get(pid)
            if known is None or (known.locks != locks and not known.is_asking):
                if len(self._answers) >= _MOST_ANSWERS:
                    self._answers = {}
                known = self._answers[pid] = _Answer(locks)
            if known.locks != locks or known.are_pythons is not None:
                return known.are_pythons if known.locks == locks else None
            if known.is_asking or known.tries >= TRIES or not may_pause:
                return None
            known.is_asking = True
            known.tries += 1
            PAUSES.begin(pid)
        work = functools.partial(self._work, pid, known, pyspy)
        threading.Thread(target=work, name="guardrun-native", daemon=True).start()
        return None

    def _work(self, pid: int, answer: _Answer, pyspy: str | None) -> None:
        with PAUSES.turn(pid):
            answer.are_pythons = _are_pythons(answer.locks, pyspy)
        with self._lock:
            answer.is_asking = False


NATIVE = Native()


class _Ends:
    """Who holds the other end of what is read from: looked up once, when first asked."""

    def __init__(self, pids: list[int], table: ProcessTable, deadline: float) -> None:
        self._pids = frozenset(pids)
        self._table = table
        self._deadline = deadline
        self._root = table.stats.get(pids[0])
        self._holders: dict[str, set[int]] | None = None
        self._is_whole = True
        self._peers: dict[int, int] | None = None

    def are_held_here(self, pid: int, fd: int) -> bool:
        """Whether nobody but the processes of this world holds the other end; False where that is not known."""
        try:
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            return False
        if link.startswith("pipe:["):
            wanted = link
        elif link.startswith("socket:["):
            if self._peers is None:
                self._peers = read_unix_peers()
            peer = self._peers.get(int(link[len("socket:[") : -1]), 0)
            if not peer:
                return False
            wanted = f"socket:[{peer}]"
        else:
            return False
        if self._holders is None:
            self._holders = self._scan()
        # Where nobody is seen to hold it somebody unseen does: else the read would have come back with nothing.
        holders = self._holders.get(wanted, set())
        return self._is_whole and bool(holders) and holders <= self._pids

    def _scan(self) -> dict[str, set[int]]:
        """Who holds which end that may be written to, as far as we may look."""
        holders: dict[str, set[int]] = {}
        for pid, stat in self._table.stats.items():
            if time.monotonic() > self._deadline:
                self._is_whole = False
                break
            try:
                names = os.listdir(f"/proc/{pid}/fd")
            except FileNotFoundError:
                continue
            except OSError:
                self._is_whole = self._is_whole and not self._may_have_inherited(stat)
                continue
            for name in names:
                link = _writable(pid, name)
                if link:
                    holders.setdefault(link, set()).add(pid)
        return holders

    def _may_have_inherited(self, stat: Stat) -> bool:
        """Whether another user's process may descend from the rank (sudo, say): then it may hold an end of its pipes.

        Orphans have been handed to process 1, or to one of the rank's own ancestors: its launcher, as a rule.
        """
        if self._root is None or stat.pid in self._pids:
            return True
        ancestors, uid = self._ancestors(self._root), os.geteuid()
        while stat.start >= self._root.start:
            parent = self._table.stats.get(stat.ppid)
            if parent is None or parent.pid == 1:
                return stat.ppid == 1
            stat = parent
        return stat.pid in ancestors and is_of_user(stat.pid, uid)

    def _ancestors(self, stat: Stat) -> set[int]:
        found: set[int] = set()
        while stat.ppid in self._table.stats and stat.ppid not in found:
            found.add(stat.ppid)
            stat = self._table.stats[stat.ppid]
        return found


def _writable(pid: int, fd: str) -> str:
    """The pipe or socket behind a descriptor that may write to it; empty for everything else."""
    try:
        link = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    if link.startswith("socket:["):
        return link
    if not link.startswith("pipe:["):
        return ""
    data = read_bytes(f"/proc/{pid}/fdinfo/{fd}") or b""
    for line in data.splitlines():
        if line.startswith(b"flags:"):
            return link if int(line.split()[1], 8) & os.O_ACCMODE else ""
    return link
