"""Trainers of transformers, Lightning and torchtitan save when guardrun asks for it; what Lightning saves is seen.

Where the first two train on several ranks and save by themselves, one rank may save for all before the ranks are ended
(in_time_trainer.py, in_time_lightning.py; imported only then).
"""

from __future__ import annotations

import os
from typing import Any

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves.checkpoint_files import path_at, replace, wrap_save

# transformers -------------------------------------------------------------------------------------------------------
# transformers' Trainer saves when guardrun asks for it: a callback sets what its own flow sets, should_save.
#
# Trainers take their default callbacks from a list of their module. A Trainer that is told to save nothing is left
# alone.


def install_transformers(module: Any, rank: Rank) -> None:
    """Add the callback to transformers.trainer. Raises AttributeError where that has no such list."""
    base: Any = module.TrainerCallback

    class GuardrunSave(base):  # type: ignore[misc]  # a class of a library that is not imported here
        """Asks guardrun once a step, at the same one on all ranks."""

        saver: Any = None
        """While it trains, where a rank may save for all."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                self.saver = _trainer_saver(module, args, rank)
                attach(rank, self.saver)
            except Exception as error:
                rank.fail("huggingface", error)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.saver = None
            detach(rank)

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                if self.saver is not None:
                    self.saver.on_evaluate(state)
            except Exception as error:
                self._give_up(error)

        def _give_up(self, error: Exception) -> None:
            self.saver = None
            detach(rank)
            rank.fail("huggingface", error)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            try:
                if self.saver is not None:
                    self.saver.on_step_end(state)
            except Exception as error:
                self._give_up(error)
            try:
                if saves(args) and rank.checkpoint_is_due():
                    control.should_save = True
            except Exception as error:
                rank.fail("huggingface", error)

    module.DEFAULT_CALLBACKS.append(GuardrunSave)


def _trainer_saver(module: Any, args: Any, rank: Rank) -> Any:
    """What saves in time for the Trainer that begins to train; None where that is not wanted, or of no use."""
    if not saves(args) or not rank.settings.get("jit", True):
        return None
    from guardrun.hooks.saves.in_time_files import has_reason
    from guardrun.hooks.saves.in_time_trainer import TrainerSave, find_trainer

    trainer = find_trainer(module.Trainer)
    if trainer is None or not has_reason(trainer.model, rank):
        return None
    return TrainerSave(rank, module, trainer)


def attach(rank: Rank, saver: Any) -> None:
    """A trainer trains that may be asked to save; or none does."""
    if saver is not None or rank.in_time is not None:
        from guardrun.hooks.rank import save_gate

        save_gate.attach(rank, saver)


def detach(rank: Rank) -> None:
    """It trains no more. Never raises."""
    try:
        attach(rank, None)
    except Exception as error:
        rank.fail("save_with", error)


def saves(args: Any) -> bool:
    """Say whether a Trainer saves at all: save_strategy is an enum of strings, or one."""
    strategy = getattr(args, "save_strategy", "steps")
    return str(getattr(strategy, "value", strategy)) != "no"


# Lightning ----------------------------------------------------------------------------------------------------------
# Lightning's Trainer saves when guardrun asks for it: beside the checkpoints of its own ModelCheckpoint.
#
# Lightning asks installed packages for callbacks; what it gets of them is given one more. Its own way of saving before
# the end of a job, `hpc_ckpt_N.ckpt`, is not taken: such a file wins over every later checkpoint for good. A Trainer
# without a ModelCheckpoint is left alone.


def install_lightning(module: Any, rank: Rank) -> None:
    """Wrap what the callback connector's module gets callbacks from."""
    base: Any = module.Callback

    class GuardrunSave(base):  # type: ignore[misc]  # a class of a library that is not imported here
        """Asks guardrun once a batch, at the same one on all ranks."""

        saver: Any = None
        """While it fits, where a rank may save for all."""

        def on_train_start(self, trainer: Any, *args: Any) -> None:
            try:
                self.saver = _lightning_saver(trainer, base, rank)
                attach(rank, self.saver)
            except Exception as error:
                rank.fail("lightning", error)

        def on_train_end(self, *args: Any) -> None:
            self.saver = None
            detach(rank)

        def on_before_optimizer_step(self, *args: Any) -> None:
            if self.saver is not None and rank.in_time is not None:
                rank.in_time.pass_closure()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            # Right after this the Trainer takes apart what is to be saved.
            if self.saver is not None and rank.in_time is not None:
                rank.in_time.hold(exception)
                self.saver = None
                detach(rank)

        def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
            try:
                if self.saver is not None:
                    self.saver.on_batch_end(trainer)
            except Exception as error:
                self.saver = None
                detach(rank)
                rank.fail("lightning", error)
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


def _lightning_saver(trainer: Any, callback: Any, rank: Rank) -> Any:
    """What saves in time for the Trainer that begins to fit; None where that is not wanted, or of no use."""
    folder = folder_of(trainer)
    if not folder or not rank.settings.get("jit", True):
        return None
    from guardrun.hooks.saves.in_time_files import has_reason
    from guardrun.hooks.saves.in_time_lightning import LightningSave

    if not has_reason(trainer.lightning_module, rank):
        return None
    package = callback.__module__.partition(".callbacks")[0]
    return LightningSave(rank, trainer, package, folder)


def folder_of(trainer: Any) -> str:
    """Where the Trainer's ModelCheckpoint saves; empty where it has none."""
    return str(getattr(getattr(trainer, "checkpoint_callback", None), "dirpath", None) or "")


# torchtitan ---------------------------------------------------------------------------------------------------------
# torchtitan's checkpoint manager decides after each step, on all ranks, whether it saves. It does so once more where
# guardrun asks for it: its usual `step-N`, with all that it keeps and removes. One that saves nothing is left alone.


def install_torchtitan(module: Any, rank: Rank) -> None:
    """Wrap the manager's decision, in the module that it is made in: others have it by an older name."""
    manager: Any = module.CheckpointManager
    if manager.__module__ != module.__name__:
        return

    def wrap(original: Any) -> Any:
        def _should_save(self: Any, *args: Any, **kwargs: Any) -> bool:
            is_due = bool(original(self, *args, **kwargs))
            is_enabled = getattr(self, "enable", getattr(self, "enable_checkpoint", False))
            if not is_enabled or getattr(self, "load_only", False):
                return is_due
            return rank.checkpoint_is_due() or is_due

        return _should_save

    replace(manager, "_should_save", wrap)


# Lightning files ----------------------------------------------------------------------------------------------------
# Lightning's saves: torch.save into memory, which is then written through fsspec, so only the caller knows where to.
#
# Its loads are torch.load's, from an open file that has a name.


_find = path_at(1, "filepath")


def _local_path(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """None for a URL: nothing of it lies in this machine's files."""
    target = args[1] if len(args) > 1 else kwargs.get("filepath")
    return None if "://" in str(target) else _find(args, kwargs)


def install_lightning_files(module: Any, rank: Rank) -> None:
    """Wrap the one function that all of Lightning's checkpoints in one file go through."""
    replace(module, "_atomic_save", lambda save: wrap_save(save, rank, _local_path, "lightning"))
