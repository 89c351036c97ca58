"""Ending processes for good: known ones, and whatever bears the run's mark.

For a supervisor whose launcher was killed, and as the last sweep of a launcher that stops an attempt.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping

from guardrun.launcher.base.process_handles import send_signal, wait_for_end
from guardrun.supervisor.collect.host.process_table import ProcessTable, processes_with_marker
from guardrun.supervisor.collect.host.procfs import read_stat

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
