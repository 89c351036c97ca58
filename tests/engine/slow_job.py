"""A virtual job in step, told to an engine as its nodes would: what each rank's steps go to, node by node."""

from __future__ import annotations

import random
from collections.abc import Callable

from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

Work = Callable[[int, int], float]
"""(rank, step) → seconds."""
TELLS_S = 4.0
"""As the sampler does (supervisor/collect/ranks/sampler.py)."""


class SlowJob:
    """Trains step by step: each takes as long as its slowest rank, and all others wait for that one.

    Opens the run and starts its ranks, unless those are running already.
    """

    def __init__(self, told: Told, ranks: int = 8, ranks_a_node: int = 2, **settings: object) -> None:
        self.told, self.ranks, self.ranks_a_node = told, ranks, ranks_a_node
        self.now_s, self.step = 1.0, 0
        self.communication_s = 0.02
        self._next_told_s = 0.0
        self._sums = [[0.0, 0.0, 0.0, 0.0] for _ in range(ranks)]
        """Took, waited, data, gc."""
        self._told_steps = 0
        if told.state.attempt is None:
            told.opened(ranks, **settings)
            self.start()

    @property
    def incidents(self) -> list[str]:
        return [incident.cause for incident in self.told.incidents.values()]

    def node_of(self, rank: int) -> str:
        attempt = self.told.state.attempt
        return attempt.ranks[rank].rank.node if attempt else f"node-{rank // self.ranks_a_node}"

    def start(self, attempt: int = 0) -> None:
        """Start an attempt."""
        self._sums = [[0.0, 0.0, 0.0, 0.0] for _ in range(self.ranks)]
        self._told_steps = 0
        alive = [
            ev.Rank(global_rank=n, local_rank=n % self.ranks_a_node, pid=1000 * (attempt + 1) + n, node=self.node_of(n))
            for n in range(self.ranks)
        ]
        self.told.tell(ev.AttemptStarted(attempt=attempt, ranks=alive), self.now_s)

    def train(self, seconds: float, work: Work, data: Work | None = None, gc: Work | None = None) -> SlowJob:
        """Go on for so long."""
        until_s, ranks, none = self.now_s + seconds, range(self.ranks), [0.0] * self.ranks
        while self.now_s < until_s:
            self.one(
                [work(rank, self.step) for rank in ranks],
                [data(rank, self.step) for rank in ranks] if data else none,
                [gc(rank, self.step) for rank in ranks] if gc else none,
            )
        return self

    def one(self, work: list[float], data: list[float], gc: list[float]) -> None:
        """One step of all."""
        took_s = max(own + late + held for own, late, held in zip(work, data, gc, strict=True)) + self.communication_s
        for sums, own, late, held in zip(self._sums, work, data, gc, strict=True):
            sums[0] += took_s
            sums[1] += took_s - own - late - held
            sums[2] += late
            sums[3] += held
        self.now_s += took_s
        self.step += 1
        self._told_steps += 1
        if self.now_s >= self._next_told_s:
            self._next_told_s = self.now_s + TELLS_S
            self.tell()

    def tell(self) -> None:
        """Every node reports."""
        for first in range(0, self.ranks, self.ranks_a_node):
            reports = [
                ev.RankReport(
                    global_rank=rank,
                    progress=self.step,
                    progress_s=self.now_s,
                    step=self.step,
                    spent=ev.StepBreakdown(self._told_steps, *(round(value, 3) for value in self._sums[rank])),
                )
                for rank in range(first, min(first + self.ranks_a_node, self.ranks))
            ]
            report = ev.NodeReport(node=self.node_of(first), attempt=self.told.attempt, ranks=reports)
            self.told.tell(report, self.now_s)


def noisy(seed: int, mean_s: float = 0.3, spread: float = 0.05) -> Work:
    """All alike, but for chance: log-normal, whose tail is heavy."""
    chance = random.Random(seed)
    return lambda rank, step: mean_s * chance.lognormvariate(0.0, spread)


def slower(work: Work, factors: dict[int, float]) -> Work:
    """Some ranks take so many times as long."""
    return lambda rank, step: work(rank, step) * factors.get(rank, 1.0)


STAGES = {0: 1.0, 1: 1.0, 2: 1.5, 3: 1.5, 4: 0.8, 5: 0.8, 6: 1.1, 7: 1.1}


def saves(work: Work) -> Work:
    """Rank 0 logs every step, and writes something every tenth."""
    return lambda rank, step: work(rank, step) + (0.03 + (0.5 if step % 10 == 0 else 0.0)) * (rank == 0)


def curriculum(work: Work) -> Work:
    """Sequences get longer and longer, and the batch is doubled once."""
    return lambda rank, step: work(rank, step) * (1 + step / 4000) * (2 if step > 1500 else 1)


def experts(work: Work) -> Work:
    """The load of two experts drifts up and down over an hour."""
    return lambda rank, step: work(rank, step) * (1 + 0.25 * (rank == 3) * min(1.0, step / 8000))


HEALTHY: dict[str, Callable[[Work], Work]] = {
    "all alike": lambda work: work,
    "pipeline stages": lambda work: slower(work, STAGES),
    "rank 0 logs and saves": saves,
    "a curriculum": curriculum,
    "drifting experts": experts,
}
