"""What `[gc] policy = "freeze"` is worth where many objects are alive and every step leaves cyclic garbage."""

from __future__ import annotations

from statistics import mean, quantiles

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher

WORK = "DDP loop with 500,000 objects alive and cyclic garbage, 2 ranks"
PAIRS = 5
QUICK_PAIRS = 1
STEPS = 1500
QUICK_STEPS = 300


class GcPolicyItem:
    """guardrun without the policy and with it, in turns, over the same work."""

    name = "gc-policy"
    title = 'Steps with [gc] policy = "freeze"'

    def measure(self, bench: Bench) -> list[Figure]:
        """Steps a second, and the median and the 99th percentile of a step's time, of each run."""
        runs: dict[str, list[list[float]]] = {"off": [], "freeze": []}
        for _ in range(bench.choose(QUICK_PAIRS, PAIRS)):
            # In turns, since a machine's speed drifts.
            for policy, taken in runs.items():
                taken.append(measure_once(policy, bench.choose(QUICK_STEPS, STEPS)))
                p50, p99 = percentiles(taken[-1])
                bench.say(f"{policy}: {1 / mean(taken[-1]):.1f} steps/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        rates = {policy: tuple(1 / mean(run) for run in taken) for policy, taken in runs.items()}
        shown = {policy: [percentiles(run) for run in taken] for policy, taken in runs.items()}
        ratios = tuple(on / off for on, off in zip(rates["freeze"], rates["off"], strict=True))
        figures = [Figure(f"{WORK}, policy {policy}", "steps/s", rates[policy]) for policy in runs]
        figures.append(Figure("… throughput, policy freeze over off", "", ratios, target=Target(1, is_floor=True)))
        for number, name in enumerate(("median", "99th percentile")):
            for policy in runs:
                times = tuple(each[number] for each in shown[policy])
                figures.append(Figure(f"… step, {name}, policy {policy}", "ms", times))
        return figures


def measure_once(policy: str, steps: int) -> list[float]:
    """Seconds of each step of rank 0."""
    flags = ["--guard-gc-policy", policy]
    with Job(Launcher.GUARDRUN, "gc_loop.py", ["--steps", str(steps)], flags=flags) as job:
        job.wait()
        return [float(second) for second in read_result(job)["step_s"]]


def percentiles(step_s: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    cuts = quantiles(step_s, n=100)
    return cuts[49] * 1000, cuts[98] * 1000
