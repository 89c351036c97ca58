"""A run whose rank 1 holds ever more, with saves and a clock: parts of stories about `[guards] memory = "save"`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told
from tests.engine.detectors.growth_curves import Curve

MIN_S = 60.0
HOUR_S = 3600.0
GIB = 1 << 30
LIMIT = 64.0
"""GiB, of the node; 8 of them are used by what does not grow."""
BASE = 3.0
EVERY_S = 30.0
SAVES: dict[str, Any] = {"saves_before_oom": True, "resumes": True, "max_restarts": 10}
A = TypeVar("A", bound=ac.Action)


def leak(per_hour: float, since_s: float = 0.0) -> Curve:
    """GiB by the seconds of the attempt."""
    return lambda s: BASE + per_hour * max(0.0, s - since_s) / HOUR_S


def heals(per_hour: float, at_s: float) -> Curve:
    return lambda s: BASE + per_hour * min(s, at_s) / HOUR_S


class Leaking:
    """An attempt that steps once a second. Answers nothing that is asked of it: tests do."""

    def __init__(self, told: Told, own: Curve, *, save_every_s: float = 0.0, saves_take_s: float = 1.0) -> None:
        self.told, self.own = told, own
        self.save_every_s, self.saves_take_s = save_every_s, saves_take_s
        self.began_s = told.now_s
        assert told.state.attempt is not None
        self.first = told.state.attempt.resumed_from.step if told.state.attempt.resumed_from else 10
        self.actions: list[ac.Action] = []
        self.asked_at: list[tuple[float, ac.AskCheckpoint]] = []
        self.device: Curve | None = None
        """GiB in tensors of rank 1's device, of 64, beside."""
        self.milestones = 0

    def until(self, end_s: float, is_over: Callable[[], bool] = lambda: False) -> Leaking:
        """Go on until so many seconds of the attempt have passed, or sooner; memory that is out ends it, too."""
        at_s = self.told.now_s - self.began_s
        turn = math.floor(at_s / EVERY_S + 1e-6)
        while not is_over():
            turn += 1
            at_s = turn * EVERY_S
            if at_s > end_s:
                return self
            self._tick(self.began_s + at_s)
            if self.used(at_s) >= LIMIT:
                return self
            self._report(at_s)
            if self.save_every_s and at_s % self.save_every_s < EVERY_S:
                self.save(at_s)
        return self

    def until_asked(self, end_s: float = 24 * HOUR_S) -> ac.AskCheckpoint:
        """Go on until a request that is new; fails where none comes before memory is out."""
        before = len(self.asked_at)
        self.until(end_s, lambda: len(self.asked_at) > before)
        assert len(self.asked_at) > before, "nothing was asked"
        return self.asked_at[-1][1]

    def used(self, at_s: float) -> float:
        return 8.0 + BASE + self.own(at_s)

    def save(self, at_s: float | None = None, step: int | None = None) -> list[ac.Action]:
        """Rank 0 has saved."""
        number = self.step(at_s) if step is None else step
        event = ev.CheckpointSaved(
            attempt=self.told.attempt,
            global_rank=0,
            path=f"/out/ckpt_{number}.pt",
            step=number,
            duration_s=self.saves_take_s,
        )
        return self._keep(self.told.tell(event))

    def step(self, at_s: float | None = None) -> int:
        return self.first + int(self.told.now_s - self.began_s if at_s is None else at_s)

    def completed(self, request: int, step: int | None = None, after_s: float = 3.0) -> list[ac.Action]:
        """The edge has found what answers a request."""
        number = self.step() if step is None else step
        found = ev.Checkpoint(path=f"/out/ckpt_{number}.pt", step=number)
        event = ev.CheckpointCompleted(request=request, checkpoint=found)
        return self._keep(self.told.tell(event, self.told.now_s + after_s))

    def tell(self, event: ev.Event) -> list[ac.Action]:
        return self._keep(self.told.tell(event))

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def said(self) -> list[str]:
        return [one.text for one in self.of(ac.Say)]

    @property
    def is_stopped(self) -> bool:
        return bool(self.of(ac.StopAttempt))

    def asked_loudly(self) -> list[float]:
        """When, in seconds of the attempt."""
        return [at_s - self.began_s for at_s, one in self.asked_at if not one.is_quiet]

    def _keep(self, actions: list[ac.Action]) -> list[ac.Action]:
        self.actions += actions
        self.asked_at += [(self.told.now_s, one) for one in actions if isinstance(one, ac.AskCheckpoint)]
        return actions

    def _tick(self, now_s: float) -> None:
        for _ in range(1000):
            due_s = self.told.engine.next_deadline_s()
            if due_s is None or due_s > now_s:
                return
            self._keep(self.told.tell(ev.Ticked(), max(due_s, self.told.now_s)))
        raise AssertionError("it ticks for ever")

    def _report(self, at_s: float) -> None:
        reports = []
        for rank, own in ((0, BASE), (1, self.own(at_s))):
            memory = ev.MemoryUse(own=int(own * GIB), limit=int(LIMIT * GIB), used=int(self.used(at_s) * GIB))
            device = None
            if self.device is not None and rank == 1:
                held = int(self.device(at_s) * GIB)
                device = ev.DeviceMemory(
                    allocated=held, peak=held, reserved=held, limit=int(LIMIT * GIB), total=int(LIMIT * GIB), device=7
                )
            report = ev.RankReport(
                global_rank=rank,
                progress=self.step(at_s),
                progress_s=self.began_s + at_s,
                step=self.step(at_s),
                milestones=self.milestones,
                memory=memory,
                device_memory=device,
            )
            reports.append(report)
        node = self.told.state.attempt.ranks[1].rank.node if self.told.state.attempt else "node-a"
        event = ev.NodeReport(node=node, attempt=self.told.attempt, ranks=reports)
        self._keep(self.told.tell(event, self.began_s + at_s))


def leaking(
    told: Told, own: Curve, *, save_every_s: float = 0.0, saves_take_s: float = 1.0, **settings: object
) -> Leaking:
    """A run of two ranks that is set to save before memory runs out."""
    told.running(ranks=2, **{**SAVES, **settings})
    return Leaking(told, own, save_every_s=save_every_s, saves_take_s=saves_take_s)


def next_attempt(told: Told, step: int, own: Curve, start_s: float = 5.0, **more: Any) -> Leaking:
    """Nothing of it is alive; the next one resumes at this step, and trains after so long."""
    told.stopped(told.now_s + 1.0)
    told.chosen(ev.Checkpoint(path=f"/out/ckpt_{step}.pt", step=step))
    told.started(told.state.next_attempt, at_s=told.now_s + 0.5)
    told.tell(ev.CheckpointLoaded(attempt=told.attempt, global_rank=0, path=f"/out/ckpt_{step}.pt", step=step))
    told.step(step + 1, told.now_s + start_s)
    return Leaking(told, own, **more)
