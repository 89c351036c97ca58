"""What the supervisor takes from the node while all is well."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.job import Job, Launcher
from guardrun.hooks.wire.board import Board, Field

WINDOW_S = 25.0
QUICK_WINDOW_S = 5.0
WINDOWS = 5
"""The window's parts, for the spread."""
SETTLE_S = 3.0
"""After the ranks' first steps."""
NICE = 10
"""For the ranks: eight importing torch must not keep the machine, or the benchmark, from its work."""


class SupervisorCostItem:
    """Ranks that train lightly: the supervisor's work is that of any healthy run."""

    name = "supervisor"
    title = "CPU and memory of the supervisor"

    def measure(self, bench: Bench) -> list[Figure]:
        """Share of a core, and proportional set size, with 2 and with 8 ranks."""
        figures = []
        for ranks in (2, 8):
            cost = measure_with(ranks, bench.choose(int(QUICK_WINDOW_S), int(WINDOW_S)))
            mean = sum(cost.supervisor) / len(cost.supervisor)
            bench.say(f"{ranks} ranks: {mean:.2f}% of a core, {cost.pss_mb:.1f} MB")
            figures += [
                Figure(f"supervisor's CPU, {ranks} ranks", "% of a core", cost.supervisor, target=Target(1)),
                Figure(f"… and the launcher's, and the threads' in ranks, {ranks} ranks", "% of a core", cost.every),
                Figure(f"supervisor's memory (PSS), {ranks} ranks", "MB", (cost.pss_mb,), target=Target(60)),
            ]
        return figures


class Cost(NamedTuple):
    """Of each part of the window: per cent of a core."""

    supervisor: tuple[float, ...]
    every: tuple[float, ...]
    """Of all that runs for guardrun; what hooks do in the training thread has an item of its own."""
    pss_mb: float
    """10^6 bytes, at the window's end."""


def measure_with(ranks: int, window_s: float) -> Cost:
    """A job with so many ranks. Raises CannotMeasure."""
    arguments = ["--step-s", "0.1", "--hang-at", "10", "--nice", str(NICE)]
    with Job(Launcher.GUARDRUN, "train.py", arguments, ranks=ranks) as job:
        job.wait_for("training", timeout_s=180)
        time.sleep(SETTLE_S)
        # Where multiprocessing's helpers or a py-spy run beside it, they carry its words: the oldest is itself.
        found = sorted(job.find("guardrund"), key=lambda process: process.start)
        if not found:
            raise job.trouble("no guardrund is running")
        pid = found[0].pid
        threads = find_threads(job)
        rows = []
        for _ in range(WINDOWS):
            before, at_s = read_all(pid, job.process.pid, threads), time.monotonic()
            time.sleep(window_s / WINDOWS)
            after, took_s = read_all(pid, job.process.pid, threads), time.monotonic() - at_s
            rows.append([100 * (now_s - then_s) / took_s for then_s, now_s in zip(before, after, strict=True)])
        supervisor, every = (tuple(row[place] for row in rows) for place in (0, 1))
        return Cost(supervisor, every, read_pss_mb(pid))


def find_threads(job: Job) -> list[Path]:
    """The hooks' thread of each rank, as its folder in /proc. Raises CannotMeasure where a rank has none."""
    boards = [Board(str(path)) for path in job.folder.rglob("board-0-*")]
    found = [Path(f"/proc/{board[Field.PID]}/task/{board[Field.HEART_TID]}") for board in boards]
    for board in boards:
        board.close()
    if len(found) != job.ranks or not all(path.is_dir() for path in found):
        raise job.trouble("a rank has no thread of hooks")
    return found


def read_all(supervisor: int, launcher: int, threads: Sequence[Path]) -> tuple[float, float]:
    """CPU seconds of the supervisor; and of all, with the launcher and these threads."""
    try:
        in_ranks_s = sum(int((thread / "schedstat").read_text().split()[0]) / 1e9 for thread in threads)
    except OSError as error:
        raise CannotMeasure(f"a rank is gone: {error}") from None
    own_s = read_cpu_s(supervisor)
    return own_s, own_s + read_cpu_s(launcher) + in_ranks_s


def read_cpu_s(pid: int) -> float:
    """CPU seconds of a process, its ended threads included; in nanoseconds' steps, where /proc/PID/stat has 10 ms.

    Raises CannotMeasure where the process is gone.
    """
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise CannotMeasure(f"process {pid} is gone")
    try:
        return time.clock_gettime(clock.value)
    except OSError as error:
        raise CannotMeasure(f"no CPU time of process {pid}: {error}") from None


def parse_pss_kb(smaps_rollup: str) -> int:
    """Pss of /proc/PID/smaps_rollup, in KiB. Raises ValueError where it holds none."""
    found = re.search(r"^Pss:\s+(\d+) kB$", smaps_rollup, re.MULTILINE)
    if found is None:
        raise ValueError("no Pss")
    return int(found[1])


def read_pss_mb(pid: int) -> float:
    """Proportional set size in MB. Raises CannotMeasure."""
    try:
        return parse_pss_kb(Path(f"/proc/{pid}/smaps_rollup").read_text()) * 1024 / 1e6
    except (OSError, ValueError) as error:
        raise CannotMeasure(f"no PSS of process {pid}: {error}") from None
