"""What a rank's writes to a stderr cost that is a pipe: under guardrun a process between passes them on."""

from __future__ import annotations

import os
import signal

from benchmarks.item import Bench, Figure, Target
from benchmarks.items import startup
from benchmarks.items.supervisor_cost import read_pss_mb
from benchmarks.job import Job, Launcher
from tests.support.processes import descendants
from tests.support.waiting import wait_until

RUNS = 7
QUICK_RUNS = 1
LINE = 80
LINES = 200_000
BLOCK = 64 << 10
BLOCKS = 2_000
MANY_BLOCKS = 5_000


def measure_once(launcher: Launcher, count: int, size: int) -> float:
    """Seconds that rank 0 writes."""
    with Job(launcher, "write_stderr.py", [str(count), str(size)], is_piped=True) as job:
        job.wait()
        [began], [ended] = job.moments("began"), job.moments("ended")
        return (ended.at_ns - began.at_ns) / 1e9


def measure_stop(signum: signal.Signals) -> tuple[float, float]:
    """While the process between is sent a signal, and another one takes its place.

    Seconds of the longest write; megabytes of memory that the first one had (PSS).
    """
    with Job(Launcher.GUARDRUN, "write_stderr.py", [str(MANY_BLOCKS), str(BLOCK)], is_piped=True) as job:
        job.wait_for("began", ranks=1)
        [pid] = wait_until(
            lambda: [one.pid for one in descendants(job.process.pid) if "relay.py" in one.command], 30, "the relay"
        )
        pss_mb = read_pss_mb(pid)
        os.kill(pid, signum)
        job.wait()
        [began], [ended] = job.moments("longest from"), job.moments("longest until")
        return (ended.at_ns - began.at_ns) / 1e9, pss_mb


class StderrItem:
    """Launchers take turns; a `cat` reads what they write."""

    name = "stderr"
    title = "Writing to a stderr that is a pipe"

    def measure(self, bench: Bench) -> list[Figure]:
        """Start-up, microseconds a line, megabytes a second, memory, and how long a write waits for a new process."""
        starts: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        lines: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        blocks: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        stops: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
        memory: list[float] = []
        for _ in range(bench.choose(QUICK_RUNS, RUNS)):
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN):
                starts[launcher].append(startup.measure_once(launcher, is_piped=True))
                lines[launcher].append(measure_once(launcher, LINES, LINE) / LINES * 1e6)
                blocks[launcher].append(BLOCKS * BLOCK / 1e6 / measure_once(launcher, BLOCKS, BLOCK))
                bench.say(f"{launcher.value}: {lines[launcher][-1]:.2f} µs a line, {blocks[launcher][-1]:.0f} MB/s")
            for signum, waits in stops.items():
                wait_s, pss_mb = measure_stop(signum)
                waits.append(wait_s)
                memory.append(pss_mb)
                bench.say(f"longest write after {signum.name}: {waits[-1]:.2f} s")
        ours, theirs = Launcher.GUARDRUN, Launcher.TORCHRUN
        most = Target(1.0)
        return [
            Figure(
                "start-up to the first user line, stderr is a pipe", "s", tuple(starts[ours]), tuple(starts[theirs])
            ),
            Figure("… memory of the process between (PSS)", "MB", tuple(memory)),
            Figure(
                f"a line of {LINE} bytes to a stderr that is a pipe", "µs", tuple(lines[ours]), tuple(lines[theirs])
            ),
            Figure("… writes of 64 KiB", "MB/s", tuple(blocks[ours]), tuple(blocks[theirs])),
            Figure("… longest, the process between killed", "s", tuple(stops[signal.SIGKILL]), target=most),
            Figure("… longest, the process between stopped", "s", tuple(stops[signal.SIGSTOP]), target=most),
        ]
