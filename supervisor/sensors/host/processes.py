"""Processes in uninterruptible wait, and how many threads and open files there may still be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from guardrun.supervisor.collect.host.process_table import ProcessTable
from guardrun.supervisor.collect.host.procfs import Stat, read_wchan
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import below, known, parse_count, read_count, read_text, unknown

_KTHREADD = 2
"""The parent of the kernel's own threads, of which some wait for ever by their nature."""


class Waiting(NamedTuple):
    """A process in uninterruptible wait."""

    pid: int
    comm: str
    since_s: float
    """When it was first seen so, without a turn in which it was not."""


class ProcessesSensor:
    """`processes`: those that wait, and limits of the whole machine."""

    name = "processes"
    period_s = 30.0
    timeout_s = 10.0

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._waiting: dict[tuple[int, int], Waiting] = {}

    def read(self, now_s: float) -> Readout:
        """From /proc; of those in uninterruptible wait only the longest is named."""
        self._waiting = follow(self._waiting, ProcessTable.read().stats.values(), now_s)
        samples = known("processes", waiting=len(self._waiting))
        if self._waiting:
            longest = min(self._waiting.values(), key=lambda waiting: waiting.since_s)
            place = read_wchan(longest.pid)
            samples += known(
                "processes",
                longest_wait_s=round(now_s - longest.since_s, 1),
                longest_wait_pid=longest.pid,
                longest_wait_name=longest.comm,
                **({"longest_wait_place": place} if place else {}),
            )
        return Readout(sensor=self.name, at_s=now_s, samples=samples + self._limits())

    def _limits(self) -> list[Sample]:
        files, no_files = read_text(below(self._root, "/proc/sys/fs/file-nr"))
        samples = parse_file_nr(files) or unknown("processes", ("open_files", "open_files_limit"), no_files or "?")
        loadavg, no_loadavg = read_text(below(self._root, "/proc/loadavg"))
        threads = parse_threads(loadavg)
        kernel = below(self._root, "/proc/sys/kernel")
        limits = [most for name in ("pid_max", "threads-max") if (most := read_count(f"{kernel}/{name}"))]
        if threads is None or not limits:
            return samples + unknown("processes", ("threads", "threads_limit"), no_loadavg or f"{kernel} says nothing")
        return samples + known("processes", threads=threads, threads_limit=min(limits))

    def close(self) -> None:
        """Nothing is held."""


def follow(
    before: dict[tuple[int, int], Waiting], stats: Iterable[Stat], now_s: float
) -> dict[tuple[int, int], Waiting]:
    """Who is in uninterruptible wait now, by pid and start; the kernel's own threads are left out."""
    waiting = (stat for stat in stats if stat.state == "D" and _KTHREADD not in (stat.pid, stat.ppid))
    return {
        (stat.pid, stat.start): before.get((stat.pid, stat.start)) or Waiting(stat.pid, stat.comm, now_s)
        for stat in waiting
    }


def parse_file_nr(text: str) -> list[Sample]:
    """/proc/sys/fs/file-nr: allocated, (free, always 0), most (proc(5))."""
    numbers = [number for word in text.split() if (number := parse_count(word)) is not None]
    if len(numbers) != 3:
        return []
    return known("processes", open_files=numbers[0] - numbers[1], open_files_limit=numbers[2])


def parse_threads(loadavg: str) -> int | None:
    """All threads of the machine: what stands behind the `/` in /proc/loadavg."""
    words = loadavg.split()
    return parse_count(words[3].partition("/")[2]) if len(words) > 3 else None
