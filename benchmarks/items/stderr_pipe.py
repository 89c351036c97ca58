"""What a rank's writes to a stderr cost that is a pipe: under guardrun a process between passes them on."""

from __future__ import annotations

from benchmarks.item import Bench, Figure
from benchmarks.job import Job, Launcher

RUNS = 7
QUICK_RUNS = 1
LINE = 80
LINES = 200_000
BLOCK = 64 << 10
BLOCKS = 2_000


def measure_once(launcher: Launcher, count: int, size: int) -> float:
    """Seconds that rank 0 writes."""
    with Job(launcher, "write_stderr.py", [str(count), str(size)], is_piped=True) as job:
        job.wait()
        [began], [ended] = job.moments("began"), job.moments("ended")
        return (ended.at_ns - began.at_ns) / 1e9


class StderrItem:
    """Launchers take turns; a `cat` reads what they write."""

    name = "stderr"
    title = "Writing to a stderr that is a pipe"

    def measure(self, bench: Bench) -> list[Figure]:
        """Microseconds a line, and megabytes a second of large writes."""
        lines: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        blocks: dict[Launcher, list[float]] = {launcher: [] for launcher in Launcher}
        for _ in range(bench.choose(QUICK_RUNS, RUNS)):
            for launcher in (Launcher.TORCHRUN, Launcher.GUARDRUN):
                lines[launcher].append(measure_once(launcher, LINES, LINE) / LINES * 1e6)
                blocks[launcher].append(BLOCKS * BLOCK / 1e6 / measure_once(launcher, BLOCKS, BLOCK))
                bench.say(f"{launcher.value}: {lines[launcher][-1]:.2f} µs a line, {blocks[launcher][-1]:.0f} MB/s")
        ours, theirs = Launcher.GUARDRUN, Launcher.TORCHRUN
        return [
            Figure(
                f"a line of {LINE} bytes to a stderr that is a pipe", "µs", tuple(lines[ours]), tuple(lines[theirs])
            ),
            Figure("… writes of 64 KiB", "MB/s", tuple(blocks[ours]), tuple(blocks[theirs])),
        ]
