"""Ranks that train in virtual time: their windows, and the reports that a node would make of them."""

from __future__ import annotations

from collections.abc import Iterable

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.observation.metric_window import GRAD_NORM, LOSS, SKIPPED, MetricWindow
from tests.engine.conftest import Told
from tests.engine.detectors.numeric.curves import Curve

EVERY_S = 4.0
"""Between two reports of a rank in which nothing is odd."""


class Training:
    """An attempt. Each node is looked at once a second, at a moment of its own."""

    def __init__(self, told: Told, ranks: int = 4, *, per_second: float = 20.0, step: int = 0) -> None:
        """step: the base of a checkpoint that is resumed."""
        self.told = told
        self.windows = [MetricWindow() for _ in range(ranks)]
        self.per_second = per_second
        self.now_s = told.now_s
        self.step, self.batch = step, 0
        self.skipped = [0] * ranks
        self.left_out = [0] * ranks
        self.due_s = [told.now_s + EVERY_S * (1 + rank % 10 / 10) for rank in range(ranks)]
        self.said: list[str] = []
        self.milestones = 0
        """Of each rank."""

    def go(
        self, curve: Curve, steps: int, *, silent: Iterable[int] = (), lag_s: float = 0.0, counts: bool = True
    ) -> Training:
        """Take so many steps. silent: ranks that report no values; lag_s: how much later odd ranks' nodes are seen.

        counts: whether the optimizer's steps are: those that a GradScaler leaves out are none.
        """
        silent, began, began_s, done = set(silent), self.step, max(self.told.now_s, self.now_s), 0
        tick_s = max(1.0, 1 / self.per_second)
        turn = 0
        while done < steps:
            turn += 1
            until = min(steps, int(turn * tick_s * self.per_second + 1e-9))
            for step in range(began + done + 1, began + until + 1):
                self.batch += 1
                for rank in range(len(self.windows)):
                    if rank not in silent:
                        self._add(curve, rank, step if counts else began + 1)
            done, self.now_s = until, began_s + turn * tick_s
            self.step = began + until if counts else began
            self._report(self.now_s, lag_s)
        return self

    def _add(self, curve: Curve, rank: int, step: int) -> None:
        loss, norm, is_skipped, left_out = curve(rank, step)
        flags = (LOSS if loss is not None else 0) | (GRAD_NORM if norm is not None else 0)
        flags |= (SKIPPED if is_skipped else 0) | left_out
        self.skipped[rank] += is_skipped
        self.left_out[rank] += left_out > 0
        if flags:
            self.windows[rank].add(step, loss or 0.0, norm or 0.0, flags, self.batch)

    def _report(self, now_s: float, lag_s: float) -> None:
        """Each rank with something odd, or that is due, reports."""
        for odd in (0, 1) if lag_s else (-1,):
            at_s = now_s + lag_s * max(odd, 0)
            reports = []
            for rank, window in enumerate(self.windows):
                if odd not in (-1, rank % 2) or not (window.is_urgent or at_s >= self.due_s[rank]):
                    continue
                self.due_s[rank] = at_s + EVERY_S
                metrics = window.take_report(1e-3, self.skipped[rank], self.left_out[rank])
                reports.append(
                    ev.RankReport(
                        global_rank=rank,
                        progress=self.step + 1,
                        progress_s=at_s,
                        step=self.step,
                        milestones=self.milestones,
                        metrics=metrics,
                    )
                )
            if reports:
                event = ev.NodeReport(node="node-a", attempt=self.told.attempt, ranks=reports)
                self.hear(self.told.tell(event, at_s))

    def hear(self, actions: list[ac.Action]) -> None:
        """Note what is said for a person."""
        self.said += [action.text for action in actions if isinstance(action, ac.Say)]

    @property
    def remarks(self) -> list[str]:
        """What is said without an incident."""
        return [text for text in self.said if not text.startswith("incident ")]


def only(told: Told) -> ac.Incident:
    """The one incident that there is."""
    (incident,) = told.incidents.values()
    return incident


def culprits(incident: ac.Incident) -> list[int | None]:
    """Their ranks."""
    return [culprit.rank for culprit in incident.culprits]


def resume(told: Told, step: int, path: str = "/out/ckpt.pt") -> None:
    """The next attempt begins with a checkpoint of that step, and loads it; 0: from scratch."""
    told.restarted(step=step or 1, checkpoint=ev.Checkpoint(path=path, step=step) if step else None)
    if step:
        told.tell(ev.CheckpointLoaded(attempt=told.attempt, global_rank=0, path=path, step=step))
