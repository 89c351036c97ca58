"""Steps a second of a DDP loop whose step computes for about 5 ms."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Speed:
    """What one run showed."""

    steps_per_s: float
    """The median of its chunks."""
    cpu_ms: float
    """CPU time of rank 0, all its threads, a step: steadier than the speed where the machine has other work, too."""


def measure_once(launcher: Launcher, batch: int, chunks: int) -> Speed:
    """Run the loop once."""
    arguments = ["--batch", str(batch), "--chunks", str(chunks), "--steps", str(STEPS)]
    with Job(launcher, "ddp_loop.py", arguments) as job:
        job.wait()
        result = read_result(job)
        return Speed(1 / median(result["step_s"]), result["cpu_s"] * 1000)


class ThroughputItem:
    """Launchers take turns. The ratio is that of each pair, since a machine's speed drifts."""

    name = "throughput"
    title = "Throughput of a DDP loop of 5 ms steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and guardrun's over torchrun's."""
        batch = calibrate()
        ours: list[Speed] = []
        theirs: list[Speed] = []
        for _ in range(bench.choose(QUICK_PAIRS, PAIRS)):
            theirs.append(measure_once(Launcher.TORCHRUN, batch, bench.choose(1, CHUNKS)))
            ours.append(measure_once(Launcher.GUARDRUN, batch, bench.choose(1, CHUNKS)))
            speeds = theirs[-1].steps_per_s, ours[-1].steps_per_s
            bench.say("torchrun {:.1f}, guardrun {:.1f} steps a second".format(*speeds))
        speeds_ours, speeds_theirs = (tuple(run.steps_per_s for run in runs) for runs in (ours, theirs))
        cpu_ours, cpu_theirs = (tuple(run.cpu_ms for run in runs) for runs in (ours, theirs))
        ratios = tuple(a / b for a, b in zip(speeds_ours, speeds_theirs, strict=True))
        return [
            Figure("DDP loop of 5 ms steps, 2 ranks over gloo", "steps/s", speeds_ours, speeds_theirs),
            Figure("… throughput ratio", "", ratios, target=Target(0.995, is_floor=True)),
            Figure("… CPU time of a rank's step", "ms", cpu_ours, cpu_theirs),
        ]
