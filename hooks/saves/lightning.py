"""Lightning's Trainer saves when guardrun asks for it: beside the checkpoints of its own ModelCheckpoint.

Lightning asks installed packages for callbacks; what it gets of them is given one more. Its own way of saving before
the end of a job, `hpc_ckpt_N.ckpt`, is not taken: such a file wins over every later checkpoint for good. A Trainer
without a ModelCheckpoint is left alone.
"""

from __future__ import annotations

import os
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import replace


def install(module: Any, rank: Rank) -> None:
    """Wrap what the callback connector's module gets callbacks from."""
    base: Any = module.Callback

    class GuardrunSave(base):  # type: ignore[misc]  # a class of a library that is not imported here
        """Asks guardrun once a batch, at the same one on all ranks."""

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            try:
                folder = folder_of(trainer)
                if folder and rank.checkpoint_is_due():
                    name = f"guardrun-epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"
                    trainer.save_checkpoint(os.path.join(folder, name))
            except Exception as error:
                rank.fail("lightning", error)

    def wrap(original: Any) -> Any:
        def load(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            return [*found, GuardrunSave()] if isinstance(found, list) else found

        return load

    replace(module, "_load_external_callbacks", wrap)


def folder_of(trainer: Any) -> str:
    """Where the Trainer's ModelCheckpoint saves; empty where it has none."""
    return str(getattr(getattr(trainer, "checkpoint_callback", None), "dirpath", None) or "")
