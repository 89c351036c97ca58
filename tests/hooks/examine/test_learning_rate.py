"""Learning rates are changed on all ranks after the same step, or on none; and schedules go on from there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed import HashStore
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR

from guardrun.hooks.examine import learning_rate as module
from guardrun.hooks.examine.learning_rate import LearningRate, apply, choose, is_nearer
from guardrun.hooks.guards import agreement
from guardrun.hooks.guards.agreement import Agreement
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

Make = Callable[[torch.optim.Optimizer], Any]


class Training:
    """One rank's steps, in whatever thread takes them."""

    def __init__(self, rank: Rank, make: Make | None = None, lr: Any = 0.5, **more: Any) -> None:
        self.rank = rank
        rank.steps = self.counter = OptimizerSteps(rank)
        self.parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
        groups = [{"params": [one]} for one in self.parameters]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, **more)
        self.scheduler = make(self.optimizer) if make is not None else None
        self.optimizer.register_step_post_hook(self.counter.on_step)

    def step(self, times: int = 1) -> list[float]:
        """The rates that the steps were taken with."""
        rates = []
        for _ in range(times):
            for one in self.parameters:
                one.grad = torch.ones(2)
            rates.append(float(self.optimizer.param_groups[0]["lr"]))
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return rates

    def ask(self, mode: str, value: float, at_step: int, **more: Any) -> LearningRate:
        arguments = {"mode": mode, "value": value, "at_step": at_step, "id": "a", "seconds": 60.0, **more}
        return LearningRate(self.rank, arguments)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Rank]:
    def make(number: int = 0) -> Rank:
        monkeypatch.setenv("RANK", str(number))
        return Rank({"sockets": "/nowhere"}, 0)

    return make


def test_all_groups_and_what_is_told(ranks: Callable[..., Rank]) -> None:
    training = Training(ranks(), lambda one: schedules.LambdaLR(one, lambda n: 0.9**n))
    training.step(3)
    one = training.ask("scale", 0.1, at_step=5)
    assert one.on_beat(0) is None
    training.step(2)
    assert one.on_beat(0) is None
    before, after = training.step(2)
    told = one.on_beat(0)
    one.end()
    assert told == {
        "notes": [],
        "step": 5,
        "changes": ["learning rate × 0.1 (0.32805 → 0.032805) in AdamW"],
        "schedulers": ["LambdaLR"],
        "lasting": True,
        "later": {"step": 6, "lr": pytest.approx([0.05 * 0.9**5] * 2)},
    }
    assert (before, after) == pytest.approx((0.05 * 0.9**5, 0.05 * 0.9**6))
    assert training.counter._and_then.__name__ == "on_step"


ONE_CYCLE = {"max_lr": 0.8, "total_steps": 60}
SCHEDULES: dict[str, Make] = {
    "lambda": lambda one: schedules.LambdaLR(one, lambda n: 1 / (1 + n)),
    "step": lambda one: schedules.StepLR(one, 4, gamma=0.5),
    "exponential": lambda one: schedules.ExponentialLR(one, 0.9),
    "linear": lambda one: schedules.LinearLR(one, 0.2, total_iters=12),
    "polynomial": lambda one: schedules.PolynomialLR(one, 40),
    "cosine": lambda one: schedules.CosineAnnealingLR(one, 9),
    "restarts": lambda one: schedules.CosineAnnealingWarmRestarts(one, 5),
    "one cycle": lambda one: schedules.OneCycleLR(one, cycle_momentum=False, **ONE_CYCLE),
    "cyclic": lambda one: schedules.CyclicLR(one, 0.1, 0.7, step_size_up=4, cycle_momentum=False),
    "warmup, then cosine": lambda one: schedules.SequentialLR(
        one, [schedules.LinearLR(one, 0.1, total_iters=6), schedules.CosineAnnealingLR(one, 20)], [12]
    ),
    "multiplied": lambda one: schedules.MultiplicativeLR(one, lambda n: 0.95),
    "constant": lambda one: schedules.ConstantLR(one, 0.3, 12),
    "several steps": lambda one: schedules.MultiStepLR(one, [9, 20]),
    "chained": lambda one: schedules.ChainedScheduler(
        [schedules.ConstantLR(one, 0.1, 12), schedules.ExponentialLR(one, 0.9)]
    ),
    "averaged weights": lambda one: SWALR(one, 0.05, anneal_epochs=15),
    "none": lambda one: None,
}


@pytest.mark.parametrize("lr", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rest_of_a_schedule_is_scaled(name: str, lr: Any, ranks: Callable[..., Rank]) -> None:
    """As it would have been, times the factor: 40 steps, in which periods end and begin."""
    plain, scaled = (Training(ranks(), SCHEDULES[name], lr if isinstance(lr, float) else lr.clone()) for _ in range(2))
    assert plain.step(7) == scaled.step(7)
    groups = list(choose([scaled.optimizer], None, None))
    rates = [(float(group["lr"]), float(group["lr"]) * 0.25) for _, _, group in groups]
    kept = scaled.optimizer.param_groups[0]["lr"]
    parts = getattr(scaled.scheduler, "_schedulers", [])
    apply(groups, [one for one in [scaled.scheduler, *parts] if one is not None], rates)
    assert (scaled.optimizer.param_groups[0]["lr"] is kept) is not isinstance(lr, float)
    expected = [0.25 * rate for rate in plain.step(40)]
    assert scaled.step(40) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_script_that_sets_it_itself_undoes_it_and_that_is_told(ranks: Callable[..., Rank]) -> None:
    training = Training(ranks())
    training.step()
    one = training.ask("set", 0.05, at_step=2)
    one.on_beat(0)
    training.step()
    assert training.optimizer.param_groups[1]["lr"] == 0.05
    training.optimizer.param_groups[1]["lr"] = 0.49
    training.step()
    told = one.on_beat(0)
    one.end()
    assert told is not None and told["lasting"] is False and told["later"] == {"step": 3, "lr": [0.05, 0.49]}
    assert told["changes"] == ["learning rate × 0.1 (0.5 → 0.05) in AdamW"]


@pytest.mark.parametrize(
    ("asked", "more", "rates", "said"),
    [
        (("set", 0.1), {}, (0.5, 0.25), r"several learning rates \(0.5, 0.25\): scale keeps"),
        (("set", 0.1), {}, (0.0, 0.0), "a learning rate is 0"),
        (("set", 0.1), {"group": 2}, (0.5, 0.5), "no optimizer of it has stepped"),
        (("set", 0.1), {"optimizer": 1}, (0.5, 0.5), "no optimizer of it has stepped"),
        (("set", 0.1), {"at_step": 1}, (0.5, 0.5), "past step 1 before it had been told"),
        (("set", float("nan")), {}, (0.5, 0.5), "is more than 0"),
        (("set", 0), {}, (0.5, 0.5), "no factor leads from 0"),
        (("scale", 0), {}, (0.5, 0.5), "no factor leads from 0"),
        (("scale", True), {}, (0.5, 0.5), "not said how"),
        (("grow", 1.0), {}, (0.5, 0.5), "not said how"),
        (("set", 0.1), {"seconds": 9999}, (0.5, 0.5), "up to 600 seconds"),
    ],
)
def test_what_is_not_done(
    asked: tuple[str, Any], more: dict[str, Any], rates: tuple[float, float], said: str, ranks: Callable[..., Rank]
) -> None:
    training = Training(ranks())
    for group, rate in zip(training.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    training.step()
    with pytest.raises(ValueError, match=said):
        one = training.ask(*asked, **{"at_step": 2, **more})
        try:
            one.on_beat(0)
            training.step()
            one.on_beat(0)
        finally:
            one.end()
    assert [group["lr"] for group in training.optimizer.param_groups] == list(rates)


def test_an_optimizer_of_another_thread(ranks: Callable[..., Rank]) -> None:
    training = Training(ranks())
    training.step()
    one = training.ask("scale", 0.1, at_step=2)
    one.on_beat(0)
    thread = threading.Thread(target=training.step)
    thread.start()
    thread.join()
    with pytest.raises(ValueError, match="its optimizer steps on another thread"):
        one.on_beat(one.ends_ns)
    one.end()
    assert training.optimizer.param_groups[0]["lr"] == 0.5


def test_one_group_alone(ranks: Callable[..., Rank]) -> None:
    training = Training(ranks())
    training.step()
    one = training.ask("set", 0.125, at_step=2, group=1)
    one.on_beat(0)
    training.step(2)
    told = one.on_beat(0)
    one.end()
    assert told is not None and told["changes"] == ["learning rate × 0.25 (0.5 → 0.125) in AdamW, group 1"]
    assert [group["lr"] for group in training.optimizer.param_groups] == [0.5, 0.125]


# Several ranks -----------------------------------------------------------------------------------------------------


class Job:
    """Two ranks, each in a thread of its own, that agree by a store."""

    def __init__(self, ranks: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = HashStore()
        monkeypatch.setattr(LearningRate, "_meet", lambda one, name, most: Agreement(self.store, 2))
        self.trainings = [Training(ranks(number)) for number in range(2)]

    def run(self, steps: tuple[int, int], at_step: int = 3, seconds: float = 60.0) -> list[dict[str, Any] | str]:
        """What each rank tells, or raises, when it has taken so many steps; and what its rates are then."""
        told: list[dict[str, Any] | str] = ["", ""]

        def train(number: int) -> None:
            training = self.trainings[number]
            training.rank.owner_ident = threading.get_ident()
            training.step()
            try:
                one = training.ask("scale", 0.1, at_step, seconds=seconds)
                one.on_beat(0)
                training.step(steps[number] - 1)
                beat = one.on_beat(0) if one._changed_at or one._why else one.on_beat(one.ends_ns)
                told[number] = beat or ""
                one.end()
            except ValueError as error:
                told[number] = str(error)

        threads = [threading.Thread(target=train, args=[number]) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return told

    @property
    def rates(self) -> list[float]:
        return [training.optimizer.param_groups[0]["lr"] for training in self.trainings]


@pytest.fixture
def job(ranks: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    wait_for(30.0, monkeypatch)
    yield Job(ranks, monkeypatch)


def wait_for(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long ranks wait for each other."""
    monkeypatch.setattr(agreement, "WAIT_S", seconds)
    monkeypatch.setattr(module, "WAIT_S", seconds)


def test_all_ranks_after_the_same_step(job: Job) -> None:
    told = job.run((4, 5))
    assert [one["step"] if isinstance(one, dict) else one for one in told] == [3, 3]
    assert job.rates == [0.05, 0.05]


def test_a_rank_that_does_not_come_to_the_step_leaves_all_as_they_were(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for(2.0, monkeypatch)
    told = job.run((5, 2))
    assert job.rates == [0.5, 0.5]
    assert told[0] == "not all ranks came to the end of step 3 within 2 s, or one said no"
    assert told[1] == "step 3 did not end within 60 s: it is at 2"


def test_a_rank_that_was_late_says_so_and_nobody_waits(job: Job) -> None:
    job.trainings[1].step(8)
    began = time.monotonic()
    told = job.run((5, 5))
    assert job.rates == [0.5, 0.5] and time.monotonic() - began < 60
    assert told[1] == "it was past step 3 before it had been told: ask again"
    assert isinstance(told[0], str) and "one said no" in told[0]


def test_a_rank_that_can_not_is_an_objection(job: Job) -> None:
    job.trainings[1].rank.words[Field.CAPTURES] = 1
    told = job.run((5, 5))
    assert job.rates == [0.5, 0.5]
    assert told == [
        "another rank said no",
        "its optimizers step within a backward pass, or in a graph that is captured",
    ]


def test_ranks_that_have_no_way_to_agree(ranks: Callable[..., Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    training = Training(ranks())
    training.step()
    with pytest.raises(ValueError, match="several ranks, and no process group"):
        training.ask("scale", 0.1, at_step=3)


def test_small_things() -> None:
    assert is_nearer(0.49, 0.5, 0.05) and not is_nearer(0.06, 0.5, 0.05) and is_nearer(0.0, 0.0, 0.1)
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)]
    wrapper = type("Wrapper", (), {"param_groups": optimizers[0].param_groups})()
    assert len(list(choose([*optimizers, wrapper], None, None))) == 1
