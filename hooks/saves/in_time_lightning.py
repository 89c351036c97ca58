"""Lightning's Trainer, asked to save in time: `guardrun-epoch=E-step=N.ckpt` beside ModelCheckpoint's files.

What it writes is what Lightning's own dump_checkpoint() answers, on whichever rank is well; the barrier and the look
for rank 0 around it are left out. Lightning computes gradients within optimizer.step(closure). So the loops' counters
stand in the next batch, and are set back to where they stand when ModelCheckpoint saves after the last step's batch.
"""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.in_time_files import Buffers, NotSaved, check_room, written_beside

FIT, EPOCH = "fit_loop", "epoch_loop"
PLUGINS = ("TorchCheckpointIO",)
"""Which write a checkpoint as torch.save does."""
COUNTS = ("ready", "started", "processed", "completed")


class LightningSave:
    """One Trainer's, while it fits."""

    has_closures = True

    def __init__(self, rank: Rank, trainer: Any, package: str, folder: str) -> None:
        """package: "lightning.pytorch", or what it was before; folder: where ModelCheckpoint saves."""
        self._rank, self._folder = rank, folder
        self._trainer = weakref.ref(trainer)
        self.step = 0
        self._pulses = self._epoch = self._batch = self._validated = 0
        """Of the last step that is finished: the board's count, the epoch, its batches, and those of validation."""
        automatic = sys.modules[f"{package}.loops.optimization.automatic"]
        loop = sys.modules[f"{package}.loops.training_epoch_loop"]._TrainingEpochLoop
        waits = (automatic.Closure.closure, getattr(loop, "_broadcast_sigterm_tensor", None))
        self._places = {inspect.unwrap(one).__code__ for one in waits if one is not None}
        self._never = _why_never(trainer, package, folder)
        self._buffers = Buffers(trainer.lightning_module)

    # On the thread that trains -----------------------------------------------------------------------------------

    def on_batch_end(self, trainer: Any) -> None:
        """A batch is done; where its step is, what the Trainer keeps is that after it."""
        pulses = self._rank.pace.pulses
        if self._never or pulses == self._pulses:
            return
        loop = trainer.fit_loop.epoch_loop
        self.step, self._pulses, self._epoch = trainer.global_step, pulses, trainer.current_epoch
        self._batch = loop.batch_progress.current.processed
        self._validated = loop.val_loop.batch_progress.total.ready
        self._buffers.note()

    # On the thread that saves ------------------------------------------------------------------------------------

    def why_not(self, places: set[Any], *, has_backward: bool) -> str:
        """As save_gate.Saver has it."""
        trainer = self._trainer()
        if self._never or trainer is None:
            return self._never or "its Trainer is gone"
        if not self.step or self._pulses != self._rank.pace.pulses or trainer.global_step != self.step:
            return "its Trainer has not ended its last step"
        if not self._places & places:
            return "its Trainer is not within a batch"
        loop = trainer.fit_loop.epoch_loop
        if trainer.current_epoch != self._epoch or loop.batch_progress.current.completed < self._batch:
            return "its Trainer has taken no step in this epoch"
        if loop.val_loop.batch_progress.total.ready != self._validated:
            return "its Trainer has validated since its last step"
        if trainer.should_stop:
            return "its Trainer is about to end"
        return self._buffers.why_not()

    def save(self, why_no_more: Callable[[], str]) -> str:
        """As save_gate.Saver has it."""
        trainer = self._trainer()
        if trainer is None:
            raise NotSaved("its Trainer is gone")
        path = os.path.join(os.path.abspath(self._folder), f"guardrun-epoch={self._epoch}-step={self.step}.ckpt")
        check_room(self._folder, trainer.lightning_module, trainer.optimizers)
        with written_beside(path, why_no_more) as beside:
            checkpoint = trainer._checkpoint_connector.dump_checkpoint(False)
            self._set_back(checkpoint)
            sys.modules["torch"].save(checkpoint, beside)
        return path

    def _set_back(self, checkpoint: dict[str, Any]) -> None:
        """Have the loops' counters say what they say when a checkpoint is saved right after the last step."""
        if checkpoint["global_step"] != self.step:
            raise NotSaved("its Trainer has gone on")
        state = checkpoint["loops"][FIT]
        if state["state_dict"]:
            raise NotSaved("its data loaders keep a state, which is that of the batch under way")
        own = state[f"{EPOCH}.state_dict"]
        own["_batches_that_stepped"] -= 1  # counted once the batch is done, and again on resuming
        progress = state[f"{EPOCH}.batch_progress"]
        after = progress["current"]["completed"] - self._batch
        done = {"current": self._batch, "total": progress["total"]["completed"] - after}
        for kind, count in done.items():
            progress[kind].update(dict.fromkeys(COUNTS, count), completed=count - 1)
        progress["is_last_batch"] = False
        taken = state[f"{EPOCH}.automatic_optimization.optim_progress"]["optimizer"]["step"]
        for kind in done:
            taken[kind]["ready"] = taken[kind]["completed"]


def _why_never(trainer: Any, package: str, folder: str) -> str:
    """Why a save in time is not for this Trainer; empty: it is."""
    strategy = trainer.strategy
    if type(strategy).__name__ != "DDPStrategy" or not type(strategy).__module__.startswith(f"{package}."):
        return f"its strategy is {type(strategy).__name__}"
    plugin = type(strategy.checkpoint_io)
    if plugin.__name__ not in PLUGINS or plugin.__module__.partition(".")[0] not in ("lightning", "lightning_fabric"):
        return f"its checkpoints are written by {plugin.__name__}"
    if not type(trainer.precision_plugin).__module__.startswith(f"{package}."):
        return f"its steps are taken by {type(trainer.precision_plugin).__name__}"
    if not trainer.lightning_module.automatic_optimization:
        return "its module takes the optimizer's steps itself"
    if len(trainer.optimizers) != 1:
        return "it has several optimizers"
    if not any(_saves_within_epochs(one) for one in trainer.checkpoint_callbacks):
        return "its ModelCheckpoint saves at the ends of epochs, and its data would begin anew"
    if getattr(trainer.checkpoint_callback, "save_weights_only", False):
        return "its ModelCheckpoint saves nothing but weights"
    if "://" in folder:
        return "its checkpoints lie in no folder of this machine"
    return ""


def _saves_within_epochs(callback: Any) -> bool:
    """Whether its user resumes within epochs anyway: Lightning then begins with the epoch's first batch."""
    return bool(getattr(callback, "_every_n_train_steps", 0) or getattr(callback, "_train_time_interval", None))
