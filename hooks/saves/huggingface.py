"""transformers' Trainer saves when guardrun asks for it: a callback sets what its own flow sets, should_save.

Trainers take their default callbacks from a list of their module. A Trainer that is told to save nothing is left alone.
"""

from __future__ import annotations

from typing import Any

from guardrun.hooks.rank.rank import Rank


def install(module: Any, rank: Rank) -> None:
    """Add the callback to transformers.trainer. Raises AttributeError where that has no such list."""
    base: Any = module.TrainerCallback

    class GuardrunSave(base):  # type: ignore[misc]  # a class of a library that is not imported here
        """Asks guardrun once a step, at the same one on all ranks."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                if saves(args) and rank.checkpoint_is_due():
                    control.should_save = True
            except Exception as error:
                rank.fail("huggingface", error)

    module.DEFAULT_CALLBACKS.append(GuardrunSave)


def saves(args: Any) -> bool:
    """Say whether a Trainer saves at all: save_strategy is an enum of strings, or one."""
    strategy = getattr(args, "save_strategy", "steps")
    return str(getattr(strategy, "value", strategy)) != "no"
