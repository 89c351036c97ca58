"""Optimizer steps: the pulse of training, and a count of steps for scripts that don't count for us.

torch calls the global post hook for each optimizer, also compiled and scaled ones. With an optimizer a parameter it
fires many times a step, so steps are those of the optimizer that has done most.
"""

from __future__ import annotations

import weakref
from time import monotonic_ns
from typing import Any

from guardrun.hooks.patches.step_breakdown import of as spent_of
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import PHASES, Field, Milestone

_PULSES, _PROGRESS_NS = int(Field.PULSES), int(Field.PROGRESS_NS)
_STEP, _STEP_NS = int(Field.STEP), int(Field.STEP_NS)


def install(module: Any, rank: Rank) -> None:
    """Register the hook with torch.optim.optimizer. Raises AttributeError before torch 2.2."""
    spent_on_step = spent_of(rank).on_step
    counts: dict[int, int] = {}
    # An id is used again after its object's end; the count must not go on with the next one.
    watched: dict[int, weakref.ref[Any]] = {}

    def adopt(optimizer: Any) -> int:
        key = id(optimizer)

        def forget(_: object) -> None:
            counts.pop(key, None)
            watched.pop(key, None)

        watched[key] = weakref.ref(optimizer, forget)
        if not rank.has_reached(Milestone.FIRST_PROGRESS):
            rank.mark(Milestone.FIRST_PROGRESS)
        words = rank.words
        if words[Field.PHASE] == PHASES.index("start"):
            rank.phase = "train"
            words[Field.PHASE] = PHASES.index("train")
            words[Field.PHASE_SINCE_NS] = monotonic_ns()
        return 1

    def on_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            words = rank.words
            now_ns = monotonic_ns()
            words[_PULSES] += 1
            words[_PROGRESS_NS] = now_ns
            key = id(optimizer)
            count = counts[key] + 1 if key in counts else adopt(optimizer)
            counts[key] = count
            if count > words[_STEP] and not rank.counts_itself:
                words[_STEP] = count
                words[_STEP_NS] = now_ns
                spent_on_step(now_ns)
                if rank.gc_policy is not None:
                    rank.gc_policy.on_step(now_ns)
        except Exception as error:
            rank.fail("optimizer", error)

    module.register_optimizer_step_post_hook(on_step)
