"""What a rank's writes to a stderr cost that is a pipe: under guardrun a process between passes them on."""

from __future__ import annotations

import os
import signal

from benchmarks.item import Bench, Figure, Target
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


def measure_stop(signum: signal.Signals) -> float:
    """Seconds of the longest write, while the process between is sent a signal and another one takes its place."""
    with Job(Launcher.GUARDRUN, "write_stderr.py", [str(MANY_BLOCKS), str(BLOCK)], is_piped=True) as job:
        job.wait_for("began", ranks=1)
        [pid] = wait_until(
            lambda: [one.pid for one in descendants(job.process.pid) if "relay.py" in one.command], 30, "the relay"
        )
        os.kill(pid, signum)
        job.wait()
        [began], [ended] = job.moments("longest from"), job.moments("longest until")
        return (ended.at_ns - began.at_ns) / 1e9


class StderrItem:
    """Launchers take turns; a `cat` reads what they write."""

    name = "stderr"
    title = "Writing to a stderr that is a pipe"

    def measure(self, bench: Bench) -> list[Figure]:
        """Microseconds a line, megabytes a second of large writes, and how long a write waits for a new process."""
        lines: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        blocks: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        stops: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGSTOP: []}
        for _ in range(bench.choose(QUICK_RUNS, RUNS)):
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN):
                lines[launcher].append(measure_once(launcher, LINES, LINE) / LINES * 1e6)
                blocks[launcher].append(BLOCKS * BLOCK / 1e6 / measure_once(launcher, BLOCKS, BLOCK))
                bench.say(f"{launcher.value}: {lines[launcher][-1]:.2f} µs a line, {blocks[launcher][-1]:.0f} MB/s")
            for signum, waits in stops.items():
                waits.append(measure_stop(signum))
                bench.say(f"longest write after {signum.name}: {waits[-1]:.2f} s")
        ours, theirs = Launcher.GUARDRUN, Launcher.TORCHRUN
        most = Target(1.0)
        return [
            Figure(
                f"a line of {LINE} bytes to a stderr that is a pipe", "µs", tuple(lines[ours]), tuple(lines[theirs])
            ),
            Figure("… writes of 64 KiB", "MB/s", tuple(blocks[ours]), tuple(blocks[theirs])),
            Figure("… longest, the process between killed", "s", tuple(stops[signal.SIGKILL]), target=most),
            Figure("… longest, the process between stopped", "s", tuple(stops[signal.SIGSTOP]), target=most),
        ]
