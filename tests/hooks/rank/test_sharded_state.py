"""Which part of what FSDP2 shards a rank holds, and that it holds nothing else when it saves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard

from guardrun.hooks.patches.collectives import _wrap_wait, wrap_collective
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.rank import save_gate
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.rank.save_gate import SaveGate
from guardrun.hooks.rank.sharded_state import ShardedModules, find_part
from guardrun.hooks.wire.board import OPS, Field
from guardrun.hooks.wire.examinations import LAST_STEP
from tests.support.waiting import wait_until


def lies(mesh: Any, *placements: Any) -> Any:
    """A parameter that lies so."""
    return SimpleNamespace(device_mesh=SimpleNamespace(mesh=torch.tensor(mesh)), placements=placements)


COPIES, SHARD = Replicate(), Shard(0)
TWO = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("parameters", "parts"),
    [
        pytest.param([lies(TWO, COPIES, SHARD)], [0, 1, 0, 1], id="hsdp"),
        pytest.param([lies(TWO, SHARD, COPIES)], [0, 0, 1, 1], id="the other way round"),
        pytest.param([lies([[0, 2], [1, 3]], COPIES, SHARD)], [0, 0, 1, 1], id="another order of ranks"),
        pytest.param([lies([0, 1, 2, 3], SHARD)], [0, 1, 2, 3], id="fsdp"),
        pytest.param([lies(TWO, SHARD, Shard(1))], [0, 1, 2, 3], id="with tensor parallelism"),
        pytest.param([lies(TWO, COPIES, COPIES)], [0, 0, 0, 0], id="replicas"),
        pytest.param([lies(TWO, COPIES, SHARD), lies(TWO, SHARD, COPIES)], [0, 1, 2, 3], id="each another way"),
        pytest.param([lies(TWO, COPIES, COPIES), lies(TWO, COPIES, SHARD)], [0, 1, 0, 1], id="some not at all"),
        pytest.param([lies([[[0, 1], [2, 3]], [[4, 5], [6, 7]]], COPIES, SHARD, COPIES)], [0, 0, 1, 1] * 2, id="three"),
    ],
)
def test_ranks_hold_the_same_where_they_lie_the_same_along_all_that_is_sharded(
    parameters: list[Any], parts: list[int]
) -> None:
    found = [find_part(parameters, number, len(parts)) for number in range(len(parts))]
    assert found == [(part, max(parts) + 1) for part in parts]


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ([lies([0, 1], SHARD)], "some of the ranks only"),
        ([lies([0, 0, 1, 2], SHARD)], "some of the ranks only"),
        ([lies(TWO, Partial(), SHARD)], "sums that have not been made"),
        ([lies([[one % 4, *({0, 1, 2, 3} - {one % 4})]], *[SHARD] * one) for one in range(17)], "too many ways"),
        ([], "too many ways"),
    ],
)
def test_what_lies_in_no_such_way_has_no_parts(parameters: list[Any], why: str) -> None:
    assert why in str(find_part(parameters, 0, 4))


class Middle(nn.Module):
    """In the middle of a backward pass something is called."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Callable[[], None] | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden.register_hook(lambda _: None if self.call is None else self.call())
        return hidden


class Training:
    """Of a rank that is alone, so that it holds the only part."""

    def __init__(self, rank: Rank) -> None:
        self.rank, self.middle = rank, Middle()
        self.model = nn.Sequential(nn.Linear(4, 4), self.middle, nn.Linear(4, 2))
        rank.sharded = ShardedModules()
        rank.steps = counter = OptimizerSteps(rank)
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
        for module in (self.model[0], self.model):
            fully_shard(module, mesh=mesh)
            rank.sharded.add(module)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        save_gate.register(rank, lambda: None)
        assert isinstance(rank.in_time, SaveGate)
        self.gate = rank.in_time
        self.gate._is_open = True
        self.optimizer.register_step_pre_hook(self.gate._before)
        self.optimizer.register_step_post_hook(self.gate._after)
        self.optimizer.register_step_post_hook(counter.on_step)

    def backward(self) -> None:
        self.model.zero_grad()
        loss = self.model(torch.ones(3, 4)).square().mean()
        self.rank.pace.began = self.rank.pace.pulses
        self.gate.on_backward()
        loss.backward()

    def why_not(self) -> str:
        why = self.gate.shut(self.rank.step_now())
        self.gate.reopen()
        return why

    def kinds(self) -> set[str]:
        return {type(one).__name__ for one in self.model.parameters()}


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.fixture
def training(rank: Rank, group: None, monkeypatch: pytest.MonkeyPatch) -> Training:
    monkeypatch.setattr(save_gate, "OPTIMIZERS", "nowhere")  # hooks for all optimizers would outlast a test
    one = Training(rank)
    for _ in range(2):
        one.backward()
        one.optimizer.step()
    return one


def test_its_board_says_which_part_it_holds_and_that_a_backward_pass_has_begun(training: Training) -> None:
    words = training.rank.words
    assert (words[Field.PART], words[Field.PARTS]) == (1, 1)
    assert words[Field.BACKWARD_AFTER] == words[Field.PULSES]
    training.backward()
    assert words[Field.BACKWARD_AFTER] == words[Field.PULSES] + 1


def test_it_saves_what_it_is_asked_for_where_nobody_computes(training: Training) -> None:
    words, gate = training.rank.words, training.gate
    training.backward()
    assert training.why_not() == "what it trains is sharded", "as on several nodes"
    gate.asked_part = (0, 1)
    assert training.why_not() == "it is not waiting for other ranks"
    words[Field.COLLECTIVE_SINCE_NS] = time.monotonic_ns() + 10**12  # it has just come there
    assert training.why_not() == "it is not waiting for other ranks"
    words[Field.COLLECTIVE_SINCE_NS] = 1
    assert training.why_not() == "" and gate.is_shut, "until it is ended"
    gate.asked_part = (1, 2)
    assert training.why_not() == "it holds part 0 of 1, and was asked for another"
    gate.asked_part = (0, 1)
    training.backward()
    assert training.why_not() == "gradients have been averaged more than once since its last step"


def test_parameters_of_its_own_that_are_changed_or_not_finite_are_not_saved(training: Training) -> None:
    training.gate.asked_part, training.rank.words[Field.COLLECTIVE_SINCE_NS] = (0, 1), 1
    training.backward()
    first = next(iter(training.model.parameters()))
    with torch.no_grad():
        first.to_local().view(-1)[0] = float("nan")
    assert training.why_not() == "something has changed its parameters since its last step"
    training.optimizer.step()
    training.backward()
    assert training.why_not() == "its parameters are not finite"


def test_one_beside_those_that_are_sharded_is_not_left_out(training: Training) -> None:
    training.gate.asked_part, training.rank.words[Field.COLLECTIVE_SINCE_NS] = (0, 1), 1
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    training.backward()
    assert training.why_not() == "it trains parameters beside those that are sharded"


def test_within_a_backward_pass_what_is_gathered_is_let_go_and_no_step_follows(training: Training) -> None:
    gate = training.gate
    found: list[Any] = []
    gate.asked_part, training.rank.words[Field.COLLECTIVE_SINCE_NS] = (0, 1), 1

    def look() -> None:
        found.append(training.kinds())
        found.append(training.why_not())
        found.append(training.kinds())
        raise ValueError("the others are gone")

    training.middle.call = look
    with pytest.raises(ValueError, match="the others are gone"):
        training.backward()
    assert "Parameter" in found[0] and found[1:] == ["", {"DTensor"}]
    assert gate.is_shut and training.rank.frozen is gate


@pytest.mark.parametrize("passes", [1, 2])
def test_who_halts_before_its_step_holds_its_part_and_may_go_on(passes: int, training: Training) -> None:
    gate, rank = training.gate, training.rank
    gate.asked_part, gate.until_ns = (0, 1), time.monotonic_ns() + 10**12
    assert gate.halt_after(rank.step_now() + 1) == ""

    def train() -> None:
        rank.owner_ident = threading.get_ident()
        for _ in range(2):
            for _ in range(passes):
                training.backward()
            training.optimizer.step()

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: gate.is_halted, 20, "it to come there")
    wait_until(lambda: gate.shut(LAST_STEP) == "", 20, "it to stand")
    assert training.kinds() == {"DTensor"} and rank.frozen is None and rank.step_now() == 3
    gate.asked_part = None
    assert gate.shut(LAST_STEP) == "what it trains is sharded"
    gate.reopen()
    thread.join(20)
    assert rank.step_now() == 4 and not gate.is_halted


class Event:
    """Of a device. is_done: it has got there."""

    def __init__(self) -> None:
        self.is_done = True

    def query(self) -> bool:
        return self.is_done


def test_on_a_device_it_saves_once_its_host_is_past_its_passes(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host goes on from its collectives: where it stands in one says nothing."""
    gate, event = training.gate, Event()
    monkeypatch.setattr(gate, "_use_own_stream", lambda: None)
    monkeypatch.setattr(gate, "_mark_begun", lambda: None)
    monkeypatch.setattr(save_gate, "CATCHES_UP_NS", 50_000_000)
    gate._device, gate._begun, gate.asked_part = torch.device("cpu"), event, (0, 1)
    gate.until_ns = time.monotonic_ns() + 10**12
    found: list[Any] = []
    training.middle.call = lambda: found.extend((training.why_not(), training.kinds()))
    training.backward()
    assert found[0] == save_gate.GATHERED and "Parameter" in found[1], "they are left to it"
    assert not gate.is_shut and training.rank.frozen is None
    event.is_done = False
    assert training.why_not() == "its device has not got to the backward pass of the step under way"
    assert not gate.is_shut and training.rank.frozen is None
    event.is_done = True
    assert training.why_not() == ""
    assert gate.is_shut and training.rank.frozen is gate, "it gathers nothing any more"


def test_on_a_device_nothing_is_saved_between_two_modules_of_a_pass(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold their shards there, and what is to be gathered next may be on its way."""
    gate = training.gate
    monkeypatch.setattr(gate, "_mark_begun", lambda: None)
    monkeypatch.setattr(gate, "_why_not_there", lambda: "")
    monkeypatch.setattr(gate, "_has_all", lambda _: True)
    gate._device, gate.asked_part = torch.device("cpu"), (0, 1)
    training.rank.owner_ident = threading.get_ident()
    found: list[str] = []
    training.middle.call = lambda: found.append(training.why_not())
    training.backward()
    assert found == [save_gate.GATHERED] and training.why_not() == ""


@pytest.mark.parametrize("way", ["step", "collective", "wait"])
def test_who_has_saved_a_part_neither_steps_nor_computes_what_others_would_get(way: str, training: Training) -> None:
    """It may have come out of its collective meanwhile, because a hang has ended by itself."""
    rank, gate = training.rank, training.gate
    came_to: list[str] = []

    def run(*_: object) -> None:
        gate.asked_part, rank.words[Field.COLLECTIVE_SINCE_NS] = (0, 1), 1
        came_to.append(training.why_not())

    ways: dict[str, Callable[[], object]] = {
        "step": lambda: gate._before(training.optimizer, (), {}),
        "collective": wrap_collective(run, rank, OPS.index("all_reduce")),
        "wait": _wrap_wait(run, rank),
    }

    def train() -> None:
        rank.owner_ident = threading.get_ident()
        ways[way]()
        came_to.append("the next step")

    training.backward()
    if way == "step":
        run()
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    wait_until(lambda: came_to == [""], 20, "its part to be saved")
    thread.join(0.2)
    assert thread.is_alive() and came_to == [""]
    gate._is_frozen = False  # ends it
    thread.join(20)
    assert came_to == ["", "the next step"]


def test_who_goes_on_just_then_keeps_what_it_has_gathered(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, words = training.gate, training.rank.words
    gate.asked_part, words[Field.COLLECTIVE_SINCE_NS] = (0, 1), 1

    def go_on(*_: object) -> str:
        words[Field.COLLECTIVE_SINCE_NS] = 0
        return ""

    monkeypatch.setattr(save_gate, "_why_not_plain", go_on)
    found: list[Any] = []
    training.middle.call = lambda: found.extend((training.why_not(), training.kinds(), gate.is_shut))
    training.backward()
    assert found[0] == "it is not waiting for other ranks" and "Parameter" in found[1] and not found[2]
    assert training.rank.frozen is None
