"""What trainers save in time: beside, whole or not at all, and never for a Trainer that keeps more than is known.

The real trainers: tests/realworld/test_trainers.py.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.saves import in_time_lightning, in_time_trainer
from guardrun.hooks.saves.in_time_files import Buffers, NotSaved, check_room, written_beside
from guardrun.hooks.saves.random_states import RandomStates
from guardrun.hooks.wire.examinations import SAVE_PREFIX
from guardrun.hooks.wire.random_page import random_name


def well() -> str:
    return ""


# Files -----------------------------------------------------------------------------------------------------------


def write(path: Path, why_no_more: Callable[[], str] = well, content: bytes = b"new") -> None:
    with written_beside(str(path), why_no_more) as beside:
        assert not path.exists() or path.read_bytes() == b"old"
        Path(beside).write_bytes(content)


def test_what_is_written_is_put_in_place_at_the_end_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out" / "checkpoint-8"
    write(path)
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["checkpoint-8"]


def test_nothing_that_is_there_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(NotSaved, match="a is there already"):
        write(path)
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(NotSaved, match="a is there already"):
        write(path)
    path.unlink()

    def meanwhile() -> str:
        path.mkdir()  # as an ordinary save might
        return ""

    with pytest.raises(NotSaved, match="a is there already"):
        write(path, meanwhile)
    assert os.listdir(tmp_path) == ["a"] and os.listdir(path) == []


def test_what_comes_too_late_or_fails_is_not_put_in_place(tmp_path: Path) -> None:
    with pytest.raises(NotSaved, match="its time was over"):
        write(tmp_path / "a", lambda: "its time was over")
    with pytest.raises(TypeError):
        write(tmp_path / "a", content="")  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []


def test_a_folder_that_may_not_be_written_to_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        write(tmp_path / "file" / "a")


def test_who_is_killed_leaves_what_nobody_looks_into(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with written_beside(str(tmp_path / "checkpoint-8"), well) as beside:
            Path(beside).write_bytes(b"half")
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert [name.startswith(SAVE_PREFIX) for name in os.listdir(tmp_path)] == [True]


def test_a_disk_that_has_no_room_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1 << 10, 1 << 10)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state[model.weight] = {"momentum": torch.zeros_like(model.weight), "step": 3}
    usage: list[str] = []

    def free(mib: int) -> Any:
        return lambda path: usage.append(path) or SimpleNamespace(free=mib << 20)  # type: ignore[func-returns-value]

    monkeypatch.setattr(shutil, "disk_usage", free(70))
    with pytest.raises(NotSaved, match=r"70 MiB are free .*, and it would take 8"):
        check_room(str(tmp_path / "not" / "yet"), model, [optimizer])
    monkeypatch.setattr(shutil, "disk_usage", free(80))
    check_room(str(tmp_path), model, [optimizer])
    assert usage == [str(tmp_path)] * 2


def test_buffers_that_the_step_under_way_has_changed_are_seen() -> None:
    model = torch.nn.Linear(2, 2)
    buffers = Buffers(model)
    buffers.note()
    assert buffers.why_not() == "", "it has none"
    model.register_buffer("mean", torch.zeros(2))
    model.register_buffer("cache", torch.zeros(2), persistent=False)
    buffers = Buffers(model)
    assert buffers.why_not() != "", "no step is noted"
    buffers.note()
    assert buffers.why_not() == ""
    assert isinstance(model.cache, torch.Tensor) and isinstance(model.mean, torch.Tensor)
    model.cache.add_(1)
    assert buffers.why_not() == ""
    model.mean.add_(1)
    assert buffers.why_not() == "the step under way has changed its buffers"
    buffers.note()
    model.mean = torch.zeros(2)
    assert buffers.why_not() == "the step under way has changed its buffers"


# Random states ---------------------------------------------------------------------------------------------------


def draw() -> list[float]:
    numbers = [random.random(), float(np.random.normal()), random.gauss(0, 1), float(np.random.rand())]
    return [*numbers, float(torch.rand(()))]


def make(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> RandomStates:
    monkeypatch.setenv("RANK", str(number))
    return RandomStates(Rank({"sockets": str(folder)}, 0))


@pytest.mark.parametrize("odd", [0, 1])
def test_random_states_of_another_rank_are_those_after_the_step(
    odd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = make(tmp_path, 0, monkeypatch), make(tmp_path, 1, monkeypatch)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    for _ in range(odd):  # a Gaussian number is left over
        random.gauss(0, 1), np.random.normal()
    theirs.write(7)
    expected = draw()
    theirs.write(8)
    draw()
    found = mine.read(1, 7)
    assert found is not None and list(found) == ["python", "numpy", "cpu"]
    random.setstate(found["python"])
    np.random.set_state(found["numpy"])
    torch.set_rng_state(found["cpu"])
    assert draw() == expected
    assert mine.read(1, 8) is not None
    for step in (6, 9):
        assert mine.read(1, step) is None
    assert mine.read(0, 7) is None and mine.read(2, 7) is None
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


def test_a_page_that_is_none_or_cut_short_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = make(tmp_path, 0, monkeypatch), make(tmp_path, 1, monkeypatch)
    theirs.write(8)
    page = tmp_path / random_name(0, 1)
    whole = page.read_bytes()
    assert mine.read(1, 8) is not None
    for content in (b"", whole[:-1], bytes(8) + whole[8:], b"\xff" * len(whole)):
        page.write_bytes(content)
        assert mine.read(1, 8) is None


# Which Trainer -----------------------------------------------------------------------------------------------------


class Trainer:
    """As transformers', as far as is asked."""

    is_fsdp_enabled = is_deepspeed_enabled = False
    hp_search_backend = None

    def __init__(self, **arguments: Any) -> None:
        known = {"save_only_model": False, "ignore_data_skip": False, "save_strategy": "steps", "output_dir": "out"}
        self.args = SimpleNamespace(**{**known, **arguments})

    def save_model(self) -> None: ...
    def _save(self) -> None: ...
    def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
    def training_step(self, *args: Any) -> Any: ...
    def create_model_card(self, model_name: str) -> None: ...


class WritesCard(Trainer):
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.create_model_card(model_name=Path(self.args.output_dir).name)
        super()._save_checkpoint(model, trial)


class KeepsMore(WritesCard):
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        Path(self.args.output_dir, "more").touch()


class Offloads(Trainer):
    maybe_activation_offload_context = None

    def training_step(self, *args: Any) -> Any:
        with self.maybe_activation_offload_context:  # type: ignore[attr-defined]
            return super().training_step(*args)


class Counts(Trainer):
    def training_step(self, *args: Any) -> Any:
        self.calls = 1
        return super().training_step(*args)


class Lora(Trainer):
    def _save(self) -> None: ...


class Wrapped(Trainer):
    _save_checkpoint = SimpleNamespace()  # type: ignore[assignment]


class Fsdp(Trainer):
    is_fsdp_enabled = True


class Search(Trainer):
    hp_search_backend = "optuna"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        (Trainer(), ""),
        (WritesCard(), ""),
        (KeepsMore(), "KeepsMore has a _save_checkpoint() of its own"),
        (Wrapped(), "Wrapped has a _save_checkpoint() of its own"),
        (Offloads(), ""),
        (Counts(), "Counts has a training_step() of its own"),
        (Lora(), "Lora has a _save() of its own"),
        (Trainer(save_only_model=True), "its Trainer saves nothing but the model (save_only_model)"),
        (Fsdp(), "what it trains is sharded (FSDP or DeepSpeed)"),
        (Search(), "it searches for hyperparameters"),
        (Trainer(output_dir="s3://bucket/out"), "its output_dir is no folder of this machine"),
        (Trainer(ignore_data_skip=True), ""),
        (Trainer(save_strategy=SimpleNamespace(value="epoch")), ""),
        (
            Trainer(save_strategy=SimpleNamespace(value="epoch"), ignore_data_skip=True),
            "it resumes at the beginning of an epoch only (ignore_data_skip, and it saves once an epoch)",
        ),
    ],
)
def test_a_trainer_that_keeps_more_than_is_known_is_left_alone(trainer: Trainer, why: str) -> None:
    assert in_time_trainer._why_never(SimpleNamespace(Trainer=Trainer), trainer) == why


def lightning(**other: Any) -> Any:
    """As Lightning's Trainer, with DDP."""

    def named(name: str, module: str, **more: Any) -> Any:
        return type(name, (), {"__module__": module, **more})()

    package = "lightning.pytorch"
    plugin = named("TorchCheckpointIO", "lightning.fabric.plugins.io.torch_io")
    saver = SimpleNamespace(_every_n_train_steps=10, _train_time_interval=None, save_weights_only=False)
    known = {
        "strategy": named("DDPStrategy", f"{package}.strategies.ddp", checkpoint_io=plugin),
        "precision_plugin": named("Precision", f"{package}.plugins.precision"),
        "lightning_module": SimpleNamespace(automatic_optimization=True),
        "optimizers": [1],
        "checkpoint_callback": saver,
        "checkpoint_callbacks": [saver],
    }
    return SimpleNamespace(**{**known, **other}), named, package


def test_lightning_with_anything_but_its_own_ddp_and_files_is_left_alone() -> None:
    def why(folder: str = "/out", **other: Any) -> str:
        trainer, _, package = lightning(**other)
        return in_time_lightning._why_never(trainer, package, folder)

    trainer, named, package = lightning()
    plugin = trainer.strategy.checkpoint_io
    at_ends = SimpleNamespace(_every_n_train_steps=0, _train_time_interval=None)
    weights = SimpleNamespace(_every_n_train_steps=1, save_weights_only=True)
    assert why() == ""
    assert why(strategy=named("FSDPStrategy", f"{package}.x")) == "its strategy is FSDPStrategy"
    assert why(strategy=named("DDPStrategy", "mine", checkpoint_io=plugin)) == "its strategy is DDPStrategy"
    theirs = named("DDPStrategy", f"{package}.x", checkpoint_io=named("AsyncCheckpointIO", "lightning.x"))
    assert why(strategy=theirs) == "its checkpoints are written by AsyncCheckpointIO"
    assert why(precision_plugin=named("Mine", "mine")) == "its steps are taken by Mine"
    assert "takes the optimizer's steps itself" in why(lightning_module=SimpleNamespace(automatic_optimization=False))
    assert why(optimizers=[1, 2]) == "it has several optimizers"
    assert "saves at the ends of epochs" in why(checkpoint_callbacks=[at_ends])
    assert "nothing but weights" in why(checkpoint_callbacks=[weights], checkpoint_callback=weights)
    assert "no folder of this machine" in why("s3://bucket/out")


def test_a_callback_of_the_users_is_asked_on_rank_0_only() -> None:
    class Exportable:
        def __init__(self, state: int) -> None:
            self.value = state

        def state(self) -> dict[str, int]:
            return {"args": self.value}

    class Control(Exportable): ...

    Control.__module__ = "transformers.trainer_callback"
    module = SimpleNamespace(__package__="fake_transformers")
    sys.modules["fake_transformers.trainer_callback"] = SimpleNamespace(ExportableState=Exportable)  # type: ignore[assignment]
    try:
        trainer = SimpleNamespace(
            callback_handler=SimpleNamespace(callbacks=[object(), Control(1), Control(2)]), control=Control(3)
        )
        told = in_time_trainer._callback_states(module, trainer, is_first=False)
        assert told == {"Control": [{"args": 1}, {"args": 2}, {"args": 3}]}
        trainer.callback_handler.callbacks = [Exportable(4)]
        assert "Exportable" in in_time_trainer._callback_states(module, trainer, is_first=True)
        with pytest.raises(NotSaved, match="Exportable keeps a state of which only rank 0's counts"):
            in_time_trainer._callback_states(module, trainer, is_first=False)
    finally:
        del sys.modules["fake_transformers.trainer_callback"]
