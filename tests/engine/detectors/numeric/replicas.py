"""Ranks that hold the same tensors: what they check, and ways in which some come to hold something else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from guardrun.supervisor.collect.ranks.checksums import fold_sums
from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

CHECKS = ((50, False), (60, True), (500, False), (510, True), (1000, False), (1010, True))
Change = Callable[[dict[int, list[int]], dict[int, int], int], None]
"""Of sums by rank, and of in-place operations by rank since the check before; the step."""


class Replicas:
    """Ranks that hold the same tensors; what they check follows from the count, and from what a test changes."""

    def __init__(
        self, told: Told, ranks: int = 4, tensors: int = 8, of: str = "a1", steps: int = 0, **settings: object
    ) -> None:
        told.running(ranks=ranks, **settings)
        self.told, self.ranks, self.tensors, self.of, self.base = told, ranks, tensors, of, steps
        self.said: list[str] = []
        self.actions: list[ac.Action] = []
        self.written = dict.fromkeys(range(ranks), 0)
        self.names = ["a DistributedDataParallel model", *(f"layer{place}.weight" for place in range(tensors))]

    def check(self, count: int, is_echo: bool, change: Change, *, silent: tuple[int, ...] = (), kind: int = 0) -> None:
        """One check of all ranks; a node's report each."""
        for rank, checks in self.checks(count, is_echo, change, kind).items():
            if rank not in silent:
                self.report({rank: checks}, self.base + count)

    def checks(self, count: int, is_echo: bool, change: Change, kind: int = 0) -> dict[int, list[ev.ReplicaCheck]]:
        """What the ranks have to report of one."""
        step = self.base + count
        sums = {
            rank: [hash((kind, place, step)) % 2**64 for place in range(self.tensors)] for rank in range(self.ranks)
        }
        writes = dict.fromkeys(range(self.ranks), 100)
        change(sums, writes, step)
        for rank in range(self.ranks):
            self.written[rank] += writes[rank] if kind == 0 else 0
        made = {rank: [self._check(kind, count, is_echo, sums[rank], rank)] for rank in range(self.ranks)}
        if count == 50:
            made[0].insert(0, msgspec.structs.replace(made[0][0], kind=2, names=self.names))
        return made

    def report(self, checks: dict[int, list[ev.ReplicaCheck]], step: int) -> None:
        """One report of a node."""
        reports = [
            ev.RankReport(global_rank=rank, progress=step, step=step, replicas=made) for rank, made in checks.items()
        ]
        event = ev.NodeReport(node="node-a", attempt=self.told.attempt, ranks=reports)
        actions = self.told.tell(event, self.told.now_s + 0.1)
        self.actions += actions
        self.said += [action.text for action in actions if isinstance(action, ac.Say)]

    def _check(self, kind: int, count: int, is_echo: bool, sums: list[int], rank: int) -> ev.ReplicaCheck:
        return ev.ReplicaCheck(
            of=self.of,
            kind=kind,
            replicas=self.ranks,
            count=count,
            step=self.base + count,
            is_echo=is_echo,
            layout=len(sums),
            writes=self.written[rank],
            tensors=len(sums),
            digests=fold_sums(sums, is_echo=is_echo),
        )

    def go(self, change: Change, until: int = 1010) -> Replicas:
        """All checks up to a count."""
        for count, is_echo in CHECKS:
            if count <= until:
                self.check(count, is_echo, change)
        return self

    @property
    def remarks(self) -> list[str]:
        return [text for text in self.said if text.startswith("replicas of")]


def flipped(*ranks: int, place: int = 3, since: int = 61, until: int = 10**9) -> Change:
    """A tensor of each of these ranks is another from one step on, each in its own way."""

    def change(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
        for rank in ranks:
            if since <= count < until:
                sums[rank][place] += 1 << (10 + rank)

    return change


def nothing(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
    """All agree."""


def all_of(*ranks: int, since: int = 61) -> Change:
    """All tensors of each of these ranks."""

    def change(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
        for place in range(len(sums[0])):
            flipped(*ranks, place=place, since=since)(sums, writes, count)

    return change


def wrote(*ranks: int) -> Change:
    """The script writes to a parameter on these ranks."""

    def change(sums: dict[int, list[int]], writes: dict[int, int], count: int) -> None:
        flipped(*ranks)(sums, writes, count)
        for rank in ranks:
            writes[rank] += count == 500

    return change
