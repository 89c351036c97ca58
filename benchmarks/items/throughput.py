"""Steps a second of a DDP loop whose step computes for about 5 ms."""

from __future__ import annotations

from statistics import median

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher

STEP_MS = 5.0
PAIRS = 8
QUICK_PAIRS = 2
CHUNKS = 4
STEPS = 200
"""A chunk: about a second, so that whatever guardrun does once a second happens in each."""


def calibrate() -> int:
    """The batch size that makes a step take STEP_MS on this machine; the work is then the same in every run."""
    with Job(Launcher.TORCHRUN, "ddp_loop.py", ["--calibrate", str(STEP_MS)]) as job:
        job.wait()
        return int(read_result(job)["batch"])


def measure_once(launcher: Launcher, batch: int, chunks: int) -> float:
    """Steps a second: the median of the chunks."""
    arguments = ["--batch", str(batch), "--chunks", str(chunks), "--steps", str(STEPS)]
    with Job(launcher, "ddp_loop.py", arguments) as job:
        job.wait()
        step_s: list[float] = read_result(job)["step_s"]
        return 1 / median(step_s)


class ThroughputItem:
    """Launchers take turns. The ratio is that of each pair, since a machine's speed drifts."""

    name = "throughput"
    title = "Throughput of a DDP loop of 5 ms steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and guardrun's over torchrun's."""
        batch = calibrate()
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(bench.choose(QUICK_PAIRS, PAIRS)):
            theirs.append(measure_once(Launcher.TORCHRUN, batch, bench.choose(1, CHUNKS)))
            ours.append(measure_once(Launcher.GUARDRUN, batch, bench.choose(1, CHUNKS)))
            bench.say(f"torchrun {theirs[-1]:.1f}, guardrun {ours[-1]:.1f} steps a second: {ours[-1] / theirs[-1]:.4f}")
        ratios = tuple(a / b for a, b in zip(ours, theirs, strict=True))
        return [
            Figure("DDP loop of 5 ms steps, 2 ranks over gloo", "steps/s", tuple(ours), tuple(theirs)),
            Figure("… throughput ratio", "", ratios, target=Target(0.995, is_floor=True)),
        ]
