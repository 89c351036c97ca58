"""All processes of this machine at one moment: who descends from whom, who bears a run's mark; and ending them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping

from guardrun.launcher.base.processes import send_signal, wait_for_end
from guardrun.supervisor.base.background_work import run_bounded
from guardrun.supervisor.collect.host.procfs import Stat, read_bytes, read_stat

MARK_NAME = "GUARDRUN_TOKEN"
"""Environment variable that every process of a run inherits."""

_ENVIRON_BYTES = 1 << 20
_STUCK_S = 0.3


class ProcessTable:
    """One pass over /proc, to be shared by all who need it in that moment."""

    def __init__(self, stats: Iterable[Stat]) -> None:
        self.stats: dict[int, Stat] = {stat.pid: stat for stat in stats}
        self._children: dict[int, list[int]] = {}
        for stat in self.stats.values():
            self._children.setdefault(stat.ppid, []).append(stat.pid)

    @classmethod
    def read(cls) -> ProcessTable:
        """About 20 µs a process of the machine."""
        try:
            names = os.listdir("/proc")
        except OSError:
            names = []
        return cls(stat for name in names if name.isdigit() and (stat := read_stat(name)) is not None)

    def descendants(self, root: int, limit: int | None = None, without: int = 0) -> list[int]:
        """pids below root, nearest generation first, zombies included; at most limit of them.

        `without` leaves out one process and what is below it.
        """
        found: list[int] = []
        seen = {root, without}
        generation = [root]
        while generation and (limit is None or len(found) < limit):
            below = sorted(child for pid in generation for child in self._children.get(pid, ()))
            # A table is no snapshot: a pid used again while it was read could close a circle.
            generation = [pid for pid in below if pid not in seen]
            seen.update(generation)
            found += generation
        return found[:limit]

    def is_alive(self, pid: int, start: int) -> bool:
        """Say whether that very process, not a later one with its pid, was alive."""
        stat = self.stats.get(pid)
        return stat is not None and stat.start == start and not stat.is_dead


def descendants(pid: int) -> list[int]:
    """pids below pid now. For many roots read one ProcessTable."""
    return ProcessTable.read().descendants(pid)


def parse_environ(data: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ."""
    pairs = (part.partition(b"=") for part in data.split(b"\0") if b"=" in part)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def processes_with_marker(
    token: str, table: ProcessTable | None = None, uid: int | None = None
) -> list[tuple[int, int]]:
    """(pid, starttime) of every live process of a user whose first environment has GUARDRUN_TOKEN=token.

    uid: the user; ourselves by default: nobody else's environment is a supervisor's to read, root's right to it or
    not. The node agent names the job's owner.
    """
    marker = f"{MARK_NAME}={token}".encode()
    uid = os.geteuid() if uid is None else uid
    found = []
    for stat in (table or ProcessTable.read()).stats.values():
        if stat.is_dead or stat.ppid == 0 or not is_of_user(stat.pid, uid):
            continue
        if marker in read_environ(stat).split(b"\0"):
            found.append((stat.pid, stat.start))
    return found


def is_of_user(pid: int, uid: int) -> bool:
    """Whether a process is a user's; False where it is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False


def read_environ(stat: Stat) -> bytes:
    """/proc/PID/environ: what a process was started with; empty where it is gone, or nobody else's to read."""
    path = f"/proc/{stat.pid}/environ"
    if stat.state != "D":
        return read_bytes(path, _ENVIRON_BYTES) or b""
    # Its memory map may be locked for as long as it waits.
    answer = run_bounded([lambda: read_bytes(path, _ENVIRON_BYTES)], workers=1, timeout_s=_STUCK_S)[0]
    return answer if isinstance(answer, bytes) else b""


# Process cleanup ----------------------------------------------------------------------------------------------------
# Ending processes for good: known ones, and whatever bears the run's mark.
#
# For a supervisor whose launcher was killed, and as the last sweep of a launcher that stops an attempt.


_ROUND_S = 1.0


def _is_alive(pid: int, start: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.start == start and not stat.is_dead


def end_processes(processes: Iterable[tuple[int, int]], timeout_s: float = 5.0) -> list[int]:
    """SIGKILL each (pid, starttime) and wait for its end; answers the pids that are alive after timeout_s.

    A process that is not that one any more is left alone. Zombies count as ended.
    """
    processes = list(processes)
    for pid, start in processes:
        try:
            send_signal(pid, start, signal.SIGKILL)
        except OSError:
            continue
    wait_for_end(processes, timeout_s)
    return [pid for pid, start in processes if _is_alive(pid, start)]


def end_run(
    launcher_pid: int,
    token: str,
    known: Mapping[int, int] | None = None,
    *,
    launcher_start: int = 0,
    timeout_s: float = 10.0,
) -> list[int]:
    """End all that a launcher left behind; answers the pids that not even SIGKILL ended.

    Those are the `known` ({pid: starttime}: descendants seen earlier, see Sampler) with their descendants, every
    process of the user with the run's mark, and, where launcher_start is given and the launcher lives after all, its
    descendants, those through ourselves aside; never the launcher or ourselves. Repeats, since a process may start
    another while it is being ended, until none is found.
    """
    deadline = time.monotonic() + timeout_s
    known = dict(known or {})
    while True:
        targets = _find_run((launcher_pid, launcher_start), token, known)
        if not targets:
            return []
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return sorted(targets)
        known.update(targets)
        end_processes(targets.items(), min(_ROUND_S, left_s))


def _find_run(launcher: tuple[int, int], token: str, known: Mapping[int, int]) -> dict[int, int]:
    table = ProcessTable.read()
    roots = [pid for pid, start in known.items() if table.is_alive(pid, start)]
    pids = set(roots)
    for root in (*roots, launcher[0]) if table.is_alive(*launcher) else roots:
        pids.update(table.descendants(root, without=os.getpid()))
    pids.update(pid for pid, _ in processes_with_marker(token, table))
    pids -= {os.getpid(), launcher[0]}
    return {pid: table.stats[pid].start for pid in pids if pid in table.stats and not table.stats[pid].is_dead}
