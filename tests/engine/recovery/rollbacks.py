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
    """An attempt whose actions are kept, with whoever says what there is to go back to."""

    def __init__(self, told: Told, ranks: int = 2, step: int = 0) -> None:
        self.told, self.actions = told, list[ac.Action]()
        resumed = told.state.attempt.resumed_from if told.state.attempt is not None else None
        self.there: list[ev.Checkpoint] = [resumed] if resumed is not None else []
        """Checkpoints."""
        self.answers = True
        self.training = Training(told, ranks, step=step)
        hear = self.training.hear

        def keep(actions: list[ac.Action]) -> None:
            self.actions += actions
            hear(actions)
            for action in actions:
                if isinstance(action, ac.ChooseCheckpoint) and action.is_look and self.answers:
                    keep(self.answer(action))

        self.training.hear = keep  # type: ignore[method-assign]

    def answer(self, look: ac.ChooseCheckpoint) -> list[ac.Action]:
        """The newest that is there from before; as the chooser tells it (tests/checkpoints/test_spoiled.py)."""
        *_, spoiled = look.spoiled
        before = [one for one in self.there if one.step < spoiled.from_step]
        return self.told.tell(ev.CheckpointChosen(choice=look.choice, checkpoint=before[-1] if before else None))

    def go(self, curve: Curve, steps: int) -> Heard:
        self.training.go(curve, steps)
        return self

    def saves(self, checkpoint: ev.Checkpoint) -> Heard:
        event = ev.CheckpointSaved(
            attempt=self.told.attempt, global_rank=0, path=checkpoint.path, step=checkpoint.step, duration_s=0.1
        )
        self.there.append(checkpoint)
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
