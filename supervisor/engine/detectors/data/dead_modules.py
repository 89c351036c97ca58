"""Modules that give out nothing but zeros any more (`dead_modules`), and a model that is given one number all over.

All are notes; the latter are `constant_batches` and, where there are no numbers at all, `empty_batches`.
A rank says so itself (hooks/guards/module_lives.py and blank_batches.py have the rules), with `[guards] detect =
"deep"`. The first to say so counts: ranks that train the same parameters see the same, and those of a pipeline have
modules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.run_view import AttemptView
from guardrun.supervisor.engine.model.verdicts import Remark, Verdict
from guardrun.supervisor.engine.observation.frames import ranks_text

TOPIC = "dead_modules"
BATCHES = {"input": "constant_batches", "empty": "empty_batches"}
WORDS = {"output": "output", "gradient": "gradient of the output"}


class DeadModules(msgspec.Struct, kw_only=True):
    """Whether a part of the model has died, or is given nothing to learn from."""

    is_told: bool = False
    told_batches: list[str] = []
    """Topics."""

    def judge(self, told: ev.ModulesDied, attempt: AttemptView) -> Sequence[Verdict]:
        """Take in what a rank says."""
        if told.global_rank not in attempt.ranks or not told.modules:
            return ()
        if (topic := BATCHES.get(told.what, "")) and topic not in self.told_batches:
            self.told_batches = [*self.told_batches, topic]
            return [_of_batches(told, topic)]
        if self.is_told or told.what not in WORDS:
            return ()
        self.is_told = True
        first = told.modules[0]
        others = told.count - 1
        evidence: dict[str, Any] = {
            "rank": told.global_rank,
            "what": WORDS[told.what],
            "modules": told.modules,
            "dead_modules": told.count,
            "since_step": told.since,
            "step": told.step,
            "looks": told.looks,
            "steps_apart": told.every,
            "looks_before": told.alive,
        }
        text = (
            f"the {WORDS[told.what]} of {first}{_more(others)} has been all zeros on {ranks_text([told.global_rank])} "
            f"since step {told.since}, at each of {told.looks} looks, one in {told.every} steps; at {told.alive} looks "
            "before it was not."
        )
        return [Remark(text=text, topic=TOPIC, level="warn", evidence=evidence)]


def _of_batches(told: ev.ModulesDied, topic: str) -> Remark:
    evidence: dict[str, Any] = {
        "rank": told.global_rank,
        "model": told.modules[0],
        "since_step": told.since,
        "step": told.step,
        "looks": told.looks,
        "steps_apart": told.every,
    }
    seen = "without a single sample" if told.what == "empty" else "one number all over"
    text = (
        f"each batch that the model ({told.modules[0]}) was given on {ranks_text([told.global_rank])} has been "
        f"{seen}, at each of {told.looks} looks, one in {told.every} steps, since step {told.since}."
    )
    return Remark(text=text, topic=topic, level="warn", evidence=evidence)


def _more(others: int) -> str:
    if others <= 0:
        return ""
    return " (and of another module)" if others == 1 else f" (and of {others} other modules)"
