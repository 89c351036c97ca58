"""What the hooks add to trainers: asked at every step, never in the way. The real ones: tests/realworld."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves import trainers
from guardrun.hooks.wire.board import Field


def failures(rank: Rank) -> list[str]:
    told = []
    while (item := rank.outbox.get(0.0)) is not None:
        told.append(f"{item[0]} {item[1].get('hook')}")
    return told


class TrainerCallback:
    """As transformers' own: every event has a method."""


def trainer_callback(rank: Rank) -> Any:
    module = SimpleNamespace(TrainerCallback=TrainerCallback, DEFAULT_CALLBACKS=[])
    trainers.install_transformers(module, rank)
    [kind] = module.DEFAULT_CALLBACKS
    return kind()


def lightning_callback(rank: Rank) -> Any:
    module = SimpleNamespace(Callback=object, _load_external_callbacks=lambda group: ["theirs"])
    trainers.install_lightning(module, rank)
    theirs, ours = module._load_external_callbacks("group")
    assert theirs == "theirs"
    return ours


def test_should_save_is_set_at_the_call_that_was_agreed_on(rank: Rank) -> None:
    callback = trainer_callback(rank)
    rank.words[Field.CHECKPOINT_AT] = 3
    saved = []
    for step in range(1, 6):
        control = SimpleNamespace(should_save=False)
        callback.on_step_end(SimpleNamespace(save_strategy="steps"), None, control, model=None)
        saved += [step] * control.should_save
    assert saved == [3]


def test_a_trainer_that_saves_nothing_is_not_asked(rank: Rank) -> None:
    callback = trainer_callback(rank)
    rank.words[Field.CHECKPOINT_AT] = 1
    for strategy in ("no", SimpleNamespace(value="no")):
        control = SimpleNamespace(should_save=False)
        callback.on_step_end(SimpleNamespace(save_strategy=strategy), None, control)
        assert not control.should_save
    assert rank.words[Field.CHECKS] == 0


def test_lightning_saves_beside_its_own(rank: Rank) -> None:
    callback = lightning_callback(rank)
    paths: list[str] = []
    trainer = SimpleNamespace(
        checkpoint_callback=SimpleNamespace(dirpath="/out"),
        current_epoch=1,
        global_step=7,
        save_checkpoint=paths.append,
    )
    rank.words[Field.CHECKPOINT_AT] = 2
    for index in range(3):
        callback.on_train_batch_end(trainer, None, None, None, index)
    assert paths == ["/out/guardrun-epoch=1-step=7.ckpt"]
    trainer.checkpoint_callback = None
    callback.on_train_batch_end(trainer, None, None, None, 3)
    assert rank.words[Field.CHECKS] == 3


class Manager:
    """torchtitan's, as far as it decides whether it saves; of 0.1, which has another name for what is on."""

    interval = 4

    def __init__(self, *, enable_checkpoint: bool = True) -> None:
        self.enable_checkpoint = enable_checkpoint

    def _should_save(self, curr_step: int, force: bool = False) -> bool:
        return self.enable_checkpoint and (force or curr_step % self.interval == 0)


class NewerManager(Manager):
    """Of 0.2 and 0.3."""

    def __init__(self, *, enable: bool = True, load_only: bool = False) -> None:
        self.enable, self.load_only = enable, load_only

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        return self.enable and not self.load_only and (last_step or curr_step % self.interval == 0)


def titan(kind: type, rank: Rank) -> type[Any]:
    """A manager whose module was imported."""
    made: type[Any] = type(kind.__name__, (kind,), {"_should_save": vars(kind)["_should_save"]})
    trainers.install_torchtitan(SimpleNamespace(__name__=made.__module__, CheckpointManager=made), rank)
    trainers.install_torchtitan(SimpleNamespace(__name__="where it was", CheckpointManager=made), rank)
    return made


@pytest.mark.parametrize("kind", [Manager, NewerManager])
def test_torchtitan_saves_once_more_at_the_call_that_was_agreed_on(kind: type, rank: Rank) -> None:
    manager = titan(kind, rank)()
    rank.words[Field.CHECKPOINT_AT] = 3
    assert [step for step in range(1, 10) if manager._should_save(step)] == [3, 4, 8]
    assert manager._should_save(10, True) and rank.words[Field.CHECKS] == 10


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Manager, {"enable_checkpoint": False}), (NewerManager, {"enable": False}), (NewerManager, {"load_only": True})],
)
def test_a_torchtitan_that_saves_nothing_is_not_asked(kind: type, settings: dict[str, bool], rank: Rank) -> None:
    rank.words[Field.CHECKPOINT_AT] = 1
    manager = titan(kind, rank)(**settings)
    assert not any(manager._should_save(step) for step in range(1, 9)) and rank.words[Field.CHECKS] == 0


def test_what_fails_is_told_and_does_not_reach_training(rank: Rank) -> None:
    def refuse(path: str) -> None:
        raise OSError("no room")

    rank.words[Field.CHECKPOINT_AT] = 1
    trainer = SimpleNamespace(
        checkpoint_callback=SimpleNamespace(dirpath="/out"), current_epoch=0, global_step=1, save_checkpoint=refuse
    )
    lightning_callback(rank).on_train_batch_end(trainer, None, None, None, 0)
    rank.words[Field.CHECKPOINT_ACK] = 0
    trainer_callback(rank).on_step_end(SimpleNamespace(), None, None)  # nothing to set should_save on
    assert failures(rank) == ["HookFailed lightning", "HookFailed huggingface"]
