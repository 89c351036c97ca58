"""From the command to the first line of the script in every rank."""

from __future__ import annotations

from benchmarks.item import Bench, Figure, Target
from benchmarks.job import Job, Launcher

RUNS = 9
QUICK_RUNS = 2


def measure_once(launcher: Launcher, *, is_piped: bool = False) -> float:
    """Seconds until the last rank's first line."""
    with Job(launcher, "first_line.py", is_piped=is_piped) as job:
        moments = job.wait_for("first")
        job.wait()
        return (max(moment.at_ns for moment in moments) - job.began_ns) / 1e9


class StartupItem:
    """Launchers take turns; the first turn warms the page cache and does not count."""

    name = "startup"
    title = "Start-up to the first user line"

    def measure(self, bench: Bench) -> list[Figure]:
        """Seconds, and by how many guardrun is later than the torchrun before it."""
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(bench.choose(QUICK_RUNS, RUNS) + 1):
            torchrun, guardrun = measure_once(Launcher.TORCHRUN), measure_once(Launcher.GUARDRUN)
            bench.say(f"torchrun {torchrun:.2f} s, guardrun {guardrun:.2f} s{'' if turn else ' (warm-up)'}")
            if turn:
                ours.append(guardrun)
                theirs.append(torchrun)
        name = "start-up to the first user line, 2 ranks"
        later = tuple(a - b for a, b in zip(ours, theirs, strict=True))
        return [
            Figure(name, "s", tuple(ours), tuple(theirs)),
            Figure("… later than torchrun", "s", later, target=Target(0.2)),
        ]
