"""What a rank trains with is read at a step's end, or without one; nothing is changed by it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from guardrun.hooks.examine import descriptions, found_objects
from guardrun.hooks.examine.descriptions import shorten
from guardrun.hooks.examine.inspection import Inspection
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.patches.steps import StepBreakdown
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_ANSWER_BYTES, answer_name, read_whole, request_name, write_whole
from tests.hooks.bed import Bed, finish


class Net(nn.Module):  # type: ignore[misc]  # mypy skips torch
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(40, 40), nn.Linear(40, 40)])
        self.head = nn.Linear(40, 2).double()
        self.head.weight.requires_grad_(False)
        self.register_buffer("mask", torch.ones(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.double())  # type: ignore[no-any-return]


class Training:
    """A model in this process, whose steps are counted as in a rank."""

    def __init__(self, rank: Rank) -> None:
        torch.manual_seed(3)
        self.rank = rank
        rank.steps = self.counter = OptimizerSteps(rank)
        self.model = Net()
        body = [{"params": list(self.model.layers.parameters()), "weight_decay": 0.1}]
        self.optimizer = torch.optim.AdamW(
            [*body, {"params": [self.model.head.bias], "lr": torch.tensor(0.5)}], lr=0.25
        )
        self.optimizer.register_step_post_hook(self.counter.on_step)
        data = TensorDataset(torch.ones(8, 2))
        self.loader = DataLoader(data, 4, sampler=DistributedSampler(data, 2, 1, seed=9), drop_last=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(self, weight: float = 1.0) -> None:
        self.optimizer.zero_grad()
        (self.model(torch.ones(2, 40)).sum() * weight).backward()
        self.optimizer.step()

    def inspect(self, seconds: float = 60.0) -> Inspection:
        return Inspection(self.rank, {"seconds": seconds})


@pytest.fixture
def training(rank: Rank) -> Iterator[Training]:
    one = Training(rank)
    one.step()
    yield one
    assert one.counter._and_then.__name__ == "on_step"


def of_type(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Others' objects may still be there."""
    return next(one for one in found if one.get("type", one.get("dataset")) == kind)


def test_all_that_there_is(training: Training) -> None:
    one = training.inspect()
    assert one.on_beat(0) is None
    before = [each.detach().clone() for each in training.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True))
    training.step()
    told = one.on_beat(0)
    assert told is not None and told["troubles"] == {}, told
    first, second = next(each for each in told["optimizers"] if each["group_count"] == 2)["groups"]
    assert (first["lr"], first["weight_decay"], first["betas"]) == (0.25, 0.1, [0.9, 0.999])
    assert (second["lr"], second["parameters"], second["numbers"]) == (0.5, 1, 2)
    model = of_type(told["models"], "Net")
    assert (model["parameters"], model["numbers"], model["trained"]) == (6, 3362, 3282)
    assert (model["dtypes"], model["devices"]) == ({"float32": 3280, "float64": 82}, {"cpu": 3362})
    assert (model["modules"], model["in_training"], model["wrapped"], model["bytes_here"]) == (5, 5, {}, 13776)
    loader = of_type(told["loaders"], "TensorDataset")
    assert (loader["batch_size"], loader["num_workers"], loader["drop_last"]) == (4, 0, True)
    sampler = {"type": "DistributedSampler", "num_replicas": 2, "rank": 1, "epoch": 0, "seed": 9, "shuffle": True}
    assert loader["sampler"] == sampler
    assert of_type(told["scalers"], "GradScaler")["init_scale"] == 8.0
    owners = [each["owner"] for each in told["largest"]]
    assert "parameter layers.0.weight" in owners and "gradient of layers.0.weight" in owners
    assert "AdamW's exp_avg of layers.1.weight" in owners
    assert told["largest"][0]["bytes"] == 6400 and told["largest"][0]["kind"] == "float32[40x40]"
    at_step = told["at_step"]
    norms = [each.grad.norm().item() for each in training.model.parameters() if each.grad is not None]
    assert at_step["gradient_norm"] == pytest.approx(math.hypot(*norms), rel=1e-5)
    assert {each["group"] for each in at_step["gradients"]} == {"layers.0", "layers.1", "head"}
    assert (at_step["gradient_nonfinite"], at_step["optimizer"], at_step["step"]) == (0, "AdamW", 2)
    assert told["threads"]["of"][0]["name"] == "MainThread" and told["threads"]["all"] >= 1
    assert told["settings"]["torch"] == torch.__version__ and told["looked_s"] < 20
    assert len(json.dumps(told)) < MAX_ANSWER_BYTES


def test_gradients_that_are_not_finite_come_first(training: Training) -> None:
    one = training.inspect()
    one.on_beat(0)
    training.step(math.inf)
    told = one.on_beat(0)
    assert told is not None
    bad = [each for each in told["at_step"]["gradients"] if each["nonfinite"]]
    assert bad and bad == told["at_step"]["gradients"][: len(bad)]
    assert told["at_step"]["gradient_nonfinite"] == sum(each["nonfinite"] for each in bad)


def test_without_a_step_no_tensor_is_read(training: Training) -> None:
    one = training.inspect()
    one.on_beat(0)
    told = one.on_beat(one.ends_ns)
    assert told is not None and told["at_step"] == {}
    assert told["at_step_trouble"] == "no optimizer's step ended on the thread that trains within 60 s"
    assert of_type(told["models"], "Net")["parameters"] == 6
    training.step()
    assert one.on_beat(0) is not None


def test_nothing_is_read_within_a_capture(training: Training) -> None:
    one = training.inspect()
    one.on_beat(0)
    training.rank.words[Field.CAPTURES] = 1
    training.step()
    assert one.on_beat(0) is None
    training.rank.words[Field.CAPTURES] = 0
    training.step()
    told = one.on_beat(0)
    assert told is not None and told["at_step"]["step"] == 3


def test_where_there_are_too_many_objects(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_objects, "MAX_BLOCKS", 10)
    training.rank.spent = StepBreakdown(training.rank)
    replica = nn.Linear(2, 2)
    training.rank.spent.add_replica(replica)  # as one of DistributedDataParallel would be
    one = training.inspect()
    one.on_beat(0)
    training.step()
    told = one.on_beat(0)
    assert told is not None and "too many objects" in told["troubles"]["objects"]
    assert [each["type"] for each in told["models"]] == ["Linear"] and [
        each["type"] for each in told["optimizers"]
    ] == ["AdamW"]
    assert {each["group"] for each in told["at_step"]["gradients"]} == {"group 0", "group 1"}


def test_what_a_script_makes_itself_is_no_obstacle(training: Training) -> None:
    class Odd(nn.Module):  # type: ignore[misc]
        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("not like this")

    odd = Odd()
    one = training.inspect()
    one.on_beat(0)
    training.step()
    told = one.on_beat(0)
    assert told is not None and told["troubles"] == {} and odd is not None


def test_an_answer_that_is_too_long_has_less_in_it() -> None:
    about: dict[str, Any] = {"troubles": {}, "environment": {"A": "x" * 70_000}, "threads": [1], "models": [2]}
    shorten(about)
    assert (about["threads"], about["models"]) == ([1], [2]) and list(about["troubles"]) == ["environment"]
    about |= {"threads": ["x" * 40_000], "models": ["x" * 40_000], "at_step": {}}
    shorten(about)
    assert list(about) == ["troubles", "models", "at_step"] and list(about["troubles"]) == ["environment", "threads"]


def test_nothing_found_lives_longer_for_it(training: Training) -> None:
    count = sys.getrefcount(training.model)
    one = training.inspect()
    one.on_beat(0)
    training.step()
    assert one.on_beat(0) is not None
    del one
    after = sys.getrefcount(training.model)
    assert after == count, "nor does a frame"


STANDS = """
import threading, torch
from guardrun.hooks.rank.rank import active
from guardrun.hooks.wire.board import Field

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
never = threading.Event()
while not active.words[Field.EXAMINE_GIVEN]:
    never.wait(0.05)
"""


def test_a_rank_that_stands(bed: Bed) -> None:
    process = bed.start(["-c", STANDS], more={"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_secretsecretsecret"})
    bed.wait_until(Field.STEP)
    write_whole(str(bed.sockets / request_name(0, 0)), {"number": 1, "what": "state", "arguments": {"seconds": 1}})
    bed.board().words[Field.EXAMINE_ASKED] = 1
    bed.wait_until(Field.EXAMINE_GIVEN)
    told = read_whole(str(bed.sockets / answer_name(0, 0)), 1, MAX_ANSWER_BYTES)["told"]
    assert told["at_step_trouble"] and told["troubles"] == {}
    assert [model["type"] for model in told["models"]] == ["Linear"]
    assert told["threads"]["of"][0]["where"].startswith("wait (")
    assert told["environment"]["NCCL_DEBUG"] == "WARN"
    done = finish(process)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_torch_is_not_asked_for_what_it_warns_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """2.9 does, on the script's own stderr; nor is a function called that the script has put in its place."""
    asked: list[str] = []
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    for name in ("get_float32_matmul_precision", "initial_seed"):
        monkeypatch.setattr(torch, name, lambda name=name: asked.append(name))
    settings = descriptions._settings(torch)
    assert asked == [] and settings["initial_seed"] == torch.default_generator.initial_seed()
    assert (settings["torch"], settings["deterministic_algorithms"], settings["default_dtype"]) == (
        "2.9.1+cu128", False, "torch.float32",
    )  # fmt: skip
