"""Ranks of a job, and what they tell of the samples that they train on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

LOSS_STEPS = range(48, 48 + 16 * 16, 16)
Losses = Callable[[int, int], float]
"""(rank, step) → its loss."""


@dataclass
class Job:
    """A run that trains."""

    told: Told
    ranks: int = 4
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.told.running(ranks=self.ranks)

    def report(self, *reports: ev.RankReport) -> None:
        """A node tells these."""
        event = ev.NodeReport(node="node-a", attempt=self.told.attempt, ranks=list(reports))
        actions = self.told.tell(event, self.told.now_s + 1.0)
        self.said += [action.text for action in actions if isinstance(action, ac.Say) and "note" in action.text]
        found = [type(action) for action in actions if not isinstance(action, ac.Say | ac.WriteIncident)]
        assert found == [], "a note never acts"

    def tell(self, orders: Sequence[ev.SampleOrder], ranks: Sequence[int] | None = None) -> None:
        """Each rank tells of one pass, in a report of its own."""
        for rank, order in zip(ranks or range(self.ranks), orders, strict=True):
            self.report(ev.RankReport(global_rank=rank, progress=order.step, step=order.step, samples=[order]))

    def lose(self, losses: Losses, steps: Sequence[int] = LOSS_STEPS) -> None:
        """All ranks tell losses, in two reports each."""
        for part in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
            for rank in range(self.ranks):
                found = [ev.StepLoss(step, losses(rank, step)) for step in part]
                self.report(ev.RankReport(global_rank=rank, progress=part[-1], step=part[-1], losses=found))

    @property
    def notes(self) -> dict[str, ac.Note]:
        assert self.told.incidents == {}
        return self.told.state.remarks


def order(text: str, **fields: object) -> ev.SampleOrder:
    """A pass over a loader, of four ranks whose gradients are averaged, but for what is said otherwise."""
    usual = {"loader": 0, "turn": 0, "batches": 32, "distinct": 256, "step": 33, "group": "a", "members": 4}
    return msgspec.convert(
        [{**usual, **fields, "order": text}.get(name, default) for name, default in _FIELDS], ev.SampleOrder
    )


_FIELDS = [
    (one.name, one.default if one.default is not msgspec.NODEFAULT else None)
    for one in msgspec.structs.fields(ev.SampleOrder)
]


def own(rank: int, step: int) -> float:
    """Each rank's own losses."""
    return 2.0 / step + 0.01 * rank


def same(rank: int, step: int) -> float:
    """All ranks' losses."""
    return 2.0 / step
