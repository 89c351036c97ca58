"""Attempts that train on after a step that was not finite, and what follows on them."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told, kinds
from tests.engine.detectors.numeric.curves import Curve
from tests.engine.detectors.numeric.training import Training, resume

ROLLS_BACK: dict[str, Any] = {"rolls_back": True, "resumes": True}
BAD_AT = 812
GOOD, BAD = ev.Checkpoint(path="/out/ckpt_800.pt", step=800), ev.Checkpoint(path="/out/ckpt_820.pt", step=820)


class Heard:
    """An attempt whose actions are kept."""

    def __init__(self, told: Told, ranks: int = 2, step: int = 0) -> None:
        self.told, self.actions = told, list[ac.Action]()
        self.training = Training(told, ranks, step=step)
        hear = self.training.hear

        def keep(actions: list[ac.Action]) -> None:
            self.actions += actions
            hear(actions)

        self.training.hear = keep  # type: ignore[method-assign]

    def go(self, curve: Curve, steps: int) -> Heard:
        self.training.go(curve, steps)
        return self

    def saves(self, checkpoint: ev.Checkpoint) -> Heard:
        event = ev.CheckpointSaved(
            attempt=self.told.attempt, global_rank=0, path=checkpoint.path, step=checkpoint.step, duration_s=0.1
        )
        self.actions += self.told.tell(event)
        return self

    @property
    def is_stopped(self) -> bool:
        return "StopAttempt" in kinds(self.actions)


def begin_next(told: Told, checkpoint: ev.Checkpoint = GOOD) -> list[ac.Action]:
    """Nothing of the attempt is alive; the next one resumes. What is asked of the chooser is returned."""
    asked = told.stopped(told.now_s + 1.0)
    resume(told, checkpoint.step, checkpoint.path)
    return asked
