"""What the hooks cost in the middle of training, which takes the caches: there all is ten times as dear as alone."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Any

from benchmarks.item import Bench, Figure, Target
from benchmarks.items.results import read_result
from benchmarks.job import Job, Launcher

ROUNDS, QUICK_ROUNDS = 5, 1
STEPS, QUICK_STEPS = 2000, 300
LEFT_OUT = 0.005
"""Of the longest stretches: those in which the kernel had something else to do."""


class ColdHooksItem:
    """In a rank of a real run, by its own CPU clock: a busy machine moves that less than a job's speed."""

    name = "cold-hooks"
    title = "Cost of the hooks between two steps"

    def measure(self, bench: Bench) -> list[Figure]:
        """Microseconds of CPU a step, on average, and their share of a step's; one sample a run."""
        core = max(os.sched_getaffinity(0)) if len(os.sched_getaffinity(0)) > 1 else -1
        arguments = ["--steps", str(bench.choose(QUICK_STEPS, STEPS)), "--core", str(core)]
        taken, shares = [], []
        for _ in range(bench.choose(QUICK_ROUNDS, ROUNDS)):
            with Job(Launcher.GUARDRUN, "cold_hooks.py", arguments) as job:
                job.wait()
                result = read_result(job)
                if not result["hooks"]:
                    raise job.trouble("the hooks are not there")
            taken_us = self.mean_us(result)
            taken.append(taken_us)
            shares.append(taken_us / result["step_ns"] * 1e5)
        return [
            Figure("hooks between two steps of 5 ms", "µs of CPU", tuple(taken)),
            Figure("… share of the step's CPU time", "%", tuple(shares), target=Target(0.5)),
        ]

    @staticmethod
    def mean_us(result: dict[str, Any]) -> float:
        """Of both stretches, beyond what the clock itself takes there."""

        def mean(kind: str) -> float:
            values = sorted(result[kind])
            return fmean(values[: len(values) - int(len(values) * LEFT_OUT)])

        return (mean("backward_ns") - mean("no_backward_ns") + mean("stepped_ns") - mean("not_stepped_ns")) / 1000
