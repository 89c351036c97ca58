"""What the supervisor takes from the node while all is well."""

from __future__ import annotations

import ctypes
import re
import time
from pathlib import Path

from benchmarks.item import Bench, CannotMeasure, Figure, Target
from benchmarks.job import Job, Launcher

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
            cpu, pss = measure_with(ranks, bench.choose(int(QUICK_WINDOW_S), int(WINDOW_S)))
            bench.say(f"{ranks} ranks: {sum(cpu) / len(cpu):.2f}% of a core, {pss:.1f} MB")
            figures += [
                Figure(f"supervisor's CPU, {ranks} ranks", "% of a core", tuple(cpu), target=Target(1)),
                Figure(f"supervisor's memory (PSS), {ranks} ranks", "MB", (pss,), target=Target(60)),
            ]
        return figures


def measure_with(ranks: int, window_s: float) -> tuple[list[float], float]:
    """CPU of each part of the window in percent of a core, and PSS in MB (10^6 bytes) at its end."""
    arguments = ["--step-s", "0.1", "--hang-at", "10", "--nice", str(NICE)]
    with Job(Launcher.GUARDRUN, "train.py", arguments, ranks=ranks) as job:
        job.wait_for("training", timeout_s=180)
        time.sleep(SETTLE_S)
        # Where multiprocessing's helpers or a py-spy run beside it, they carry its words: the oldest is itself.
        found = sorted(job.find("guardrund"), key=lambda process: process.start)
        if not found:
            raise job.trouble("no guardrund is running")
        pid = found[0].pid
        cpu = []
        for _ in range(WINDOWS):
            before_s, at_s = read_cpu_s(pid), time.monotonic()
            time.sleep(window_s / WINDOWS)
            cpu.append(100 * (read_cpu_s(pid) - before_s) / (time.monotonic() - at_s))
        return cpu, read_pss_mb(pid)


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
