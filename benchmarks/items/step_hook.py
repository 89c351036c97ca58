"""What the hooks cost each optimizer step."""

from __future__ import annotations

from statistics import mean, median

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher

BLOCKS = 100
QUICK_BLOCKS = 10


class StepHookItem:
    """In one rank of a real run, blocks of steps with the hooks and without take turns."""

    name = "step-hook"
    title = "Cost of the step hook"

    def measure(self, bench: Bench) -> list[Figure]:
        """Microseconds that a step takes longer, of each pair of blocks: by the median step and by the mean."""
        blocks = bench.choose(QUICK_BLOCKS, BLOCKS)
        with Job(Launcher.GUARDRUN, "step_hook.py", ["--blocks", str(blocks)], ranks=1) as job:
            job.wait()
            result = read_result(job)
            if not result["hooks"]:
                raise job.trouble("the hooks are not there")
        pairs = list(zip(result["with_ns"], result["without_ns"], strict=True))
        by_median = tuple((median(a) - median(b)) / 1000 for a, b in pairs)
        by_mean = tuple((mean(a) - mean(b)) / 1000 for a, b in pairs)
        return [
            Figure("step hook, median step", "µs", by_median, target=Target(3)),
            Figure("step hook, mean step", "µs", by_mean),
        ]
