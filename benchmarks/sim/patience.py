"""What patience costs: hangs that are waited out, and ranks that would have gone on, by `[hang] sensitivity`.

Hangs alone, and pauses alone, so that what each costs is known for itself; whoever knows how often a job has either can
add them up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from benchmarks.sim import account as use
from benchmarks.sim.befalls import HANGS
from benchmarks.sim.failures import TRUTHS, Failure, Truth
from benchmarks.sim.parameters import DAY_S, GPUS_A_NODE, STOPS_A_GPU_DAY, Parameters
from benchmarks.sim.world import World
from guardrun.supervisor.engine.model.hang_patience import Sensitivity

BEGIN = "<!-- figures: make sim SIM_ARGS='--patience --write-docs' -->"
HOUR_S = 3600.0
EVERY_S = (1.0, 60.0, 3600.0)
"""Between two saves. The first stands for a save just in time: no step is done again."""
SHORTEST_S, LONGEST_S = 30.0, 7200.0
"""Of pauses, as many in each doubling."""
APART_S = 4 * HOUR_S
"""Between two of what is played."""
HANGS_A_JOB, PAUSES_A_JOB = 2, 10
"""A job has one or the other, and learns where it has stood before. For the sum: so many pauses in 1,000 hours."""
PLACES = 4
"""Functions in which a job pauses (an evaluation, a slow store). No two of its hangs are in one place."""
ROOM = Parameters(nodes=128, pool=160, step_s=10.0, save_s=0.0, start_s=120.0)


@dataclass(frozen=True)
class Price:
    """One setting, one interval, and so many hangs, or pauses."""

    sensitivity: Sensitivity
    save_every_s: float
    played: int
    stops: int
    """Of pauses: those that were ended."""
    lost_s: float
    """Until what was seen of it was acted on, to end ranks and to start them, and for steps that are done again."""

    @property
    def each_s(self) -> float:
        """Seconds that each of them costs."""
        return self.lost_s / self.played


def hangs_a_kilohour(parameters: Parameters = ROOM) -> float:
    """In a thousand hours of a job, at the published rate."""
    share = sum(TRUTHS[truth] for truth in HANGS) / 100.0
    return STOPS_A_GPU_DAY * GPUS_A_NODE * parameters.nodes * share / DAY_S * 1000.0 * HOUR_S


def hangs(seed: int) -> list[Failure]:
    """A job's, one each APART_S, of the kinds that there are, as often as they are published."""
    chance = random.Random(f"hangs {seed}")
    kinds = sorted(HANGS, key=lambda truth: truth.value)
    found = chance.choices(kinds, [TRUTHS[truth] for truth in kinds], k=HANGS_A_JOB)
    return [_at(chance, number, truth, 0.0, place=number) for number, truth in enumerate(found)]


def pauses(seed: int) -> list[Failure]:
    """A job's, one each APART_S: lengths are even on a logarithmic scale."""
    chance = random.Random(f"pauses {seed}")
    low, high = math.log(SHORTEST_S), math.log(LONGEST_S)
    return [
        _at(chance, number, Truth.PAUSE, math.exp(chance.uniform(low, high)), place=chance.randrange(PLACES))
        for number in range(PAUSES_A_JOB)
    ]


def _at(chance: random.Random, number: int, truth: Truth, lasts_s: float, *, place: int) -> Failure:
    at_s = number * APART_S + chance.uniform(0.4, 0.6) * APART_S
    return Failure(round(at_s, 3), truth, chance.randrange(1, ROOM.pool), round(lasts_s, 3), chance.random(), place)


def price(sensitivity: Sensitivity, save_every_s: float, jobs: Sequence[list[Failure]]) -> Price:
    """Play them, one after the other."""
    stops, lost_s = 0, 0.0
    for failures in jobs:
        days = len(failures) * APART_S / DAY_S
        parameters = replace(ROOM, sensitivity=sensitivity, save_every_s=save_every_s, days=days)
        account = World(parameters, failures).run().account
        lost_s += sum(account.of(name) for name in (use.DETECTING, use.STOPPING, use.STARTING, use.REDOING))
        lost_s -= parameters.start_s  # The job's own start is nobody's fault.
        stops += account.stops
    return Price(sensitivity, save_every_s, sum(map(len, jobs)), stops, lost_s)


def table(jobs: int, show: Callable[[str], None]) -> str:
    """For the page: so many jobs with hangs, and with pauses, under each setting."""
    rate = hangs_a_kilohour()
    lines = [
        "| `hang.sensitivity` | saves every | a hang costs | a pause costs | pauses ended | in 1,000 hours |",
        "|---|---|---|---|---|---|",
    ]
    for sensitivity in get_args(Sensitivity):
        for every_s in EVERY_S:
            show(f"{sensitivity}, a save every {every_s:g} s")
            hang = price(sensitivity, every_s, [hangs(seed) for seed in range(jobs * PAUSES_A_JOB // HANGS_A_JOB)])
            pause = price(sensitivity, every_s, [pauses(seed) for seed in range(jobs)])
            total_s = rate * hang.each_s + PAUSES_A_JOB * pause.each_s
            lines.append(
                f"| {sensitivity} | {_length(every_s)} | {hang.each_s:,.0f} s | {pause.each_s:,.0f} s "
                f"| {pause.stops} of {pause.played} | {total_s:,.0f} s |"
            )
    lines += [
        "",
        f"{ROOM.nodes * GPUS_A_NODE:,} GPUs, {ROOM.start_s:g} s from a start to its first step, {ROOM.step_s:g} s a "
        f"step; {jobs * PAUSES_A_JOB} hangs and as many pauses of {SHORTEST_S:g} s to {LONGEST_S / HOUR_S:g} hours "
        f"each. The last column: {rate:.1f} hangs, which is the published rate, and {PAUSES_A_JOB} pauses.",
    ]
    return "\n".join(lines)


def _length(seconds: float) -> str:
    unit, size = ("s", 1.0) if seconds < 60 else ("min", 60.0) if seconds < HOUR_S else ("h", HOUR_S)
    return f"{seconds / size:g} {unit}"
