"""What /proc says of one process: parsers for its files, and readers that answer None where the process is gone.

/proc is read directly: the supervisor reads a few files of a few processes a second, and a library would read many.
Formats are those of proc(5). Readers never raise because a process vanished, changed its user or forbids the look.
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_READ_BYTES = 1 << 16


class Stat(NamedTuple):
    """The part of /proc/PID/stat (or of a thread's) that is used."""

    pid: int
    comm: str
    state: str
    ppid: int
    cpu_s: float
    """utime + stime: of all threads, ended ones too, for a process."""
    start: int
    """starttime in clock ticks since boot: with the pid, names a process for good."""
    faults: int = 0
    """Page faults, minor and major: of all threads, for a process."""
    threads: int = 1
    """Of the whole process."""

    @property
    def is_dead(self) -> bool:
        """A zombie is dead: nobody may ever reap it, as in containers whose PID 1 doesn't."""
        return self.state in "ZX"


class Status(NamedTuple):
    """The part of /proc/PID/status that is used."""

    tgid: int
    uid: int
    """Effective."""
    caught: int
    """SigCgt: bit N-1 is set where signal N has a handler."""
    switches: int
    """Voluntary and involuntary; of one thread."""

    def catches(self, signum: int) -> bool:
        """Say whether the process has a handler for a signal; without one most would end it."""
        return signum > 0 and bool(self.caught >> (signum - 1) & 1)


class ThreadStat(NamedTuple):
    """One thread's counters."""

    tid: int
    name: str
    state: str
    cpu_s: float
    switches: int
    faults: int = 0


def read_bytes(path: str, limit: int = _READ_BYTES) -> bytes | None:
    """Up to limit bytes of a file of /proc; None where it can't be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while limit > 0 and (chunk := os.read(fd, min(limit, _READ_BYTES))):
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)
    except OSError:
        return None
    finally:
        os.close(fd)


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/PID/stat. The name may hold spaces and parentheses, so the last `)` ends it.

    Raises ValueError where it is cut short.
    """
    opened, closed = data.find(b"("), data.rfind(b")")
    if opened < 0 or closed < opened:
        raise ValueError(f"no process name in {data[:80]!r}")
    rest = data[closed + 2 :].split(maxsplit=20)
    if len(rest) < 20:
        raise ValueError(f"only {len(rest)} fields in {data[:80]!r}")
    return Stat(
        pid=int(data[:opened]),
        comm=data[opened + 1 : closed].decode("utf-8", "replace"),
        state=chr(rest[0][0]),
        ppid=int(rest[1]),
        cpu_s=(int(rest[11]) + int(rest[12])) / _TICKS,
        start=int(rest[19]),
        faults=int(rest[7]) + int(rest[9]),
        threads=int(rest[17]),
    )


def read_stat(pid: int | str) -> Stat | None:
    """A process's stat, or a thread's for `PID/task/TID`."""
    data = read_bytes(f"/proc/{pid}/stat")
    if not data:
        return None
    try:
        return parse_stat(data)
    except ValueError:
        return None


def age_s(stat: Stat) -> float:
    """How long a process has lived, in seconds. Its start is told in time since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / _TICKS


def parse_status(text: str) -> Status:
    """Parse /proc/PID/status; what is missing (kernel threads, old kernels) reads 0."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def numbers(name: str, base: int = 10) -> list[int]:
        return [int(word, base) for word in fields.get(name, "").split()]

    uids = numbers("Uid")
    return Status(
        tgid=sum(numbers("Tgid")[:1]),
        uid=uids[1] if len(uids) > 1 else -1,
        caught=sum(numbers("SigCgt", 16)[:1]),
        switches=sum(numbers("voluntary_ctxt_switches") + numbers("nonvoluntary_ctxt_switches")),
    )


def read_status(pid: int | str) -> Status | None:
    """A process's status, or a thread's for `PID/task/TID`."""
    data = read_bytes(f"/proc/{pid}/status")
    if not data:
        return None
    try:
        return parse_status(data.decode("utf-8", "replace"))
    except ValueError:
        return None


def read_delay_s(pid: int | str) -> float:
    """For how long a process's main thread has been ready to run and had no CPU; 0.0 where the kernel does not tell.

    For a thread, `PID/task/TID`. Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat.
    """
    fields = (read_bytes(f"/proc/{pid}/schedstat") or b"").split()
    return int(fields[1]) / 1e9 if len(fields) >= 2 and fields[1].isdigit() else 0.0


def read_threads(pid: int) -> list[ThreadStat]:
    """Counters of every thread that is alive; empty where the process is gone."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []
    threads = []
    for tid in tids:
        stat = read_stat(f"{pid}/task/{tid}")
        status = read_status(f"{pid}/task/{tid}")
        if stat is not None and status is not None:
            threads.append(ThreadStat(tid, stat.comm, stat.state, stat.cpu_s, status.switches, stat.faults))
    return threads


def parse_files_limit(text: str) -> int | None:
    """The soft limit of open files (RLIMIT_NOFILE), of /proc/PID/limits; None: unlimited, or it is not told."""
    limit = re.search(r"^Max open files\s+(\d+)", text, re.MULTILINE)
    return int(limit[1]) if limit else None


class IoCounts(NamedTuple):
    """/proc/PID/io: what went through read and write, not through send and receive."""

    rchar: int = 0
    wchar: int = 0
    syscr: int = 0
    """Calls of read."""


class Io(NamedTuple):
    """As ProcessLook has it."""

    bytes: int
    beside_bytes: int = 0
    beside_reads: int = 0


def parse_io(text: str) -> IoCounts:
    """Raises ValueError."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return IoCounts(*(int(fields.get(name, "0")) for name in IoCounts._fields))


def read_io_counts(path: str) -> IoCounts | None:
    """Of a process's or a thread's file in /proc; None where it may not be read."""
    data = read_bytes(path)
    if not data:
        return None
    try:
        return parse_io(data.decode("ascii", "replace"))
    except ValueError:
        return None


def read_io(pid: int) -> int:
    """Bytes read and written so far; -1 where that can't be known."""
    counts = read_io_counts(f"/proc/{pid}/io")
    return counts.rchar + counts.wchar if counts is not None else -1


def read_own_io(pid: int) -> Io:
    """Likewise, apart from what threads other than the main one have read."""
    main, whole = read_io_counts(f"/proc/{pid}/task/{pid}/io"), read_io_counts(f"/proc/{pid}/io")
    if whole is None or main is None:
        return Io(-1 if whole is None else whole.rchar + whole.wchar)
    return Io(main.rchar + whole.wchar, max(0, whole.rchar - main.rchar), max(0, whole.syscr - main.syscr))


def read_wchan(pid: int) -> str:
    """The kernel function a process waits in; empty where it runs, or the kernel doesn't tell us."""
    data = read_bytes(f"/proc/{pid}/wchan") or b""
    text = data.decode("ascii", "replace").strip()
    return "" if text == "0" else text


_FD_CALLS: dict[str, frozenset[int]] = {
    # read write fstat lseek pread64 pwrite64 readv writev fsync fdatasync ftruncate getdents64 preadv pwritev fallocate
    "x86_64": frozenset((0, 1, 5, 8, 17, 18, 19, 20, 74, 75, 77, 217, 285, 295, 296)),
    "aarch64": frozenset((46, 47, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83)),
}
"""System calls whose first argument is the descriptor that they wait for (asm/unistd_64.h, asm-generic/unistd.h)."""


_SLEEPS: dict[str, tuple[int, frozenset[int], frozenset[int]]] = {
    "x86_64": (202, frozenset((35, 230)), frozenset((23, 270))),
    "aarch64": (98, frozenset((101, 115)), frozenset((72,))),
}
"""futex; nanosleep and clock_nanosleep; select and pselect6, which Pythons before 3.11 sleep in."""


def is_timed(text: str, machine: str) -> bool:
    """Say whether a thread sleeps until a time of its own, or waits for a lock until then; of its file `syscall`.

    Not where it waits for a descriptor until then, as sockets with a time limit do.
    """
    words = text.split()
    if len(words) < 7 or not words[0].isdigit() or machine not in _SLEEPS:
        return False
    number, (futex, sleeps, selects) = int(words[0]), _SLEEPS[machine]
    if number == futex:
        return int(words[4], 16) != 0
    return number in sleeps or (number in selects and int(words[1], 16) == 0)


def parse_syscall(text: str, machine: str) -> int | None:
    """The descriptor that a thread waits for, of /proc/PID/syscall; None where it is in no call that has one."""
    words = text.split()
    if len(words) < 2 or not words[0].isdigit() or int(words[0]) not in _FD_CALLS.get(machine, ()):
        return None
    return int(words[1], 16)


def read_call(pid: int, tid: int) -> str:
    """A thread's file `syscall`; empty where it may not be read."""
    return (read_bytes(f"/proc/{pid}/task/{tid}/syscall") or b"").decode("ascii", "replace")


def read_waited_file(pid: int) -> str:
    """The file that a process's main thread is in a system call with; empty where none, or it may not be seen."""
    fd = parse_syscall(read_call(pid, pid), os.uname().machine)
    if fd is None:
        return ""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    return target if target.startswith("/") else ""


def read_kernel_stack(pid: int) -> str:
    """/proc/PID/stack, which only root may read; else empty."""
    return (read_bytes(f"/proc/{pid}/stack") or b"").decode("ascii", "replace")


def read_cmdline(pid: int, limit: int = 4096) -> list[str]:
    """The arguments of a process, at most limit bytes of them.

    May block where another thread of it holds its memory map (state D): ask from a thread that may be abandoned.
    """
    data = read_bytes(f"/proc/{pid}/cmdline", limit) or b""
    return [part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0") if data]


def read_exe(pid: int) -> str:
    """The path of the program a process runs; empty where it is gone, or forbids the look."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def read_boot_id() -> str:
    """Names this boot of the machine (or container host); empty where /proc doesn't say."""
    return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode("ascii", "replace").strip()
