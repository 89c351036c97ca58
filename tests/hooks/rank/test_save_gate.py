"""The state is saved after a whole step, or not at all; and it stands still while it is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import guardrun.hooks
from guardrun.hooks.examine.in_time_save import InTimeSave
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.rank import save_gate
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.rank.save_gate import SaveGate
from guardrun.hooks.wire.board import Field, Milestone
from guardrun.hooks.wire.examinations import LAST_STEP
from tests.support.waiting import wait_until

FAR_NS = 3600 * 1_000_000_000


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


class Training:
    """One rank's, as its hooks see it; the function that it has registered notes what it finds."""

    def __init__(self, rank: Rank, model: nn.Module) -> None:
        self.rank, self.model = rank, DistributedDataParallel(model)
        rank.steps = self.counter = OptimizerSteps(rank)
        assert rank.spent is not None
        rank.spent.add_replica(self.model)
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.function: Callable[[], object] = lambda: None
        save_gate.register(rank, self._save)
        assert isinstance(rank.in_time, SaveGate)
        self.gate = rank.in_time
        self.watch(self.optimizer)

    def _save(self) -> object:
        return self.function()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """As torch's own hooks for all optimizers."""
        self.gate._is_open = True
        optimizer.register_step_pre_hook(self.gate._before)
        optimizer.register_step_post_hook(self.gate._after)
        optimizer.register_step_post_hook(self.counter.on_step)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(3, 4)).square().mean()
        self.rank.pace.began = self.rank.pace.pulses  # as hooks/patches/metrics.py does
        self.gate.on_backward()
        loss.backward()

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.backward()
            self.optimizer.step()

    def why_not(self, step: int | None = None) -> str:
        why = self.gate.shut(self.rank.step_now() if step is None else step)
        self.gate.reopen()
        return why

    def save(self, **more: Any) -> InTimeSave:
        arguments = {"step": self.rank.step_now(), "until_ns": time.monotonic_ns() + FAR_NS, **more}
        return InTimeSave(self.rank, arguments)


def told(save: InTimeSave) -> dict[str, Any]:
    answers: list[dict[str, Any]] = []
    wait_until(lambda: bool(answers) or bool(answers.append(one) if (one := save.on_beat(0)) else 0), 20, "an answer")
    save.end()
    return answers[0]


@pytest.fixture
def make(rank: Rank, group: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Training]:
    monkeypatch.setattr(save_gate, "OPTIMIZERS", "nowhere")  # hooks for all optimizers would outlast a test
    return lambda model=None: Training(rank, model or nn.Linear(4, 2))


@pytest.fixture
def training(make: Callable[..., Training]) -> Training:
    one = make()
    one.train(3)
    return one


# When ------------------------------------------------------------------------------------------------------------


def test_between_a_backward_pass_and_a_step_it_is_whole_and_nowhere_else(training: Training) -> None:
    assert "what follows a step may not be done" in training.why_not()
    with training.model.no_sync():
        training.backward()
    assert training.why_not() == ""
    training.backward()  # gradients add up: nothing that is saved changes
    assert training.why_not() == ""
    training.optimizer.step()
    assert "what follows a step may not be done" in training.why_not()


def test_parameters_that_are_shifted_for_a_second_pass_are_not_saved(training: Training) -> None:
    """Adversarial training, as it is mostly written: torch counts no writes to `.data`."""
    training.backward()
    for parameter in training.model.parameters():
        parameter.data.add_(1)
    training.backward()
    assert training.why_not() == "gradients have been averaged more than once since its last step"
    training.optimizer.step()
    training.backward()
    assert training.why_not() == ""


@pytest.mark.parametrize("is_early", [False, True])
def test_steps_that_are_counted_where_they_begin_are_not_those_that_are_done(
    is_early: bool, make: Callable[..., Training]
) -> None:
    one = make()
    for _ in range(3):
        if is_early:
            one.rank.count_step(None, 0)
        one.train()
        if not is_early:
            one.rank.count_step(None, 0)
    if is_early:
        one.rank.count_step(None, 0)
    one.backward()
    early = "its script has counted a step before its optimizer has done one"
    assert one.why_not() == (early if is_early else "")


NOT_DONE = "no backward pass has begun since its last step: what follows a step may not be done"


def test_a_script_may_say_that_its_own_step_ends_all_of_one(training: Training) -> None:
    """Only one that has: in many, a scheduler steps after what they count by."""
    training.rank.count_step(None, 0)
    assert training.why_not() == NOT_DONE
    save_gate.register(training.rank, training._save, between_steps=True)
    assert training.why_not() == NOT_DONE, "that was before it said so"
    training.train()
    assert training.why_not() == NOT_DONE, "its optimizer's step is done, and no more"
    thread = threading.Thread(target=training.rank.count_step, args=(None, 0))
    thread.start()
    thread.join()
    assert training.why_not() == NOT_DONE, "whoever counts there is not the one that trains"
    training.rank.count_step(None, 0)
    assert training.why_not() == ""
    training.backward()
    assert training.why_not() == ""
    training.optimizer.step()
    assert training.why_not() == NOT_DONE
    training.rank.count_step(None, 0)
    with torch.no_grad():
        training.model.module.weight.add_(1.0)  # an evaluation of averaged weights, put in their place
    assert training.why_not() == "something has changed its parameters since its last step"
    save_gate.register(training.rank, training._save)
    assert training.why_not() == NOT_DONE, "the last one counts"


def test_between_steps_a_device_has_to_have_got_to_the_scripts_own_step(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Done] = []
    monkeypatch.setattr(training.gate, "_use_own_stream", lambda: None)
    monkeypatch.setattr(save_gate, "CATCHES_UP_NS", 50_000_000)
    monkeypatch.setattr(training.gate, "_mark_begun", lambda: setattr(training.gate, "_begun", begun[-1]))
    save_gate.register(training.rank, training._save, between_steps=True)
    training.gate.until_ns = time.monotonic_ns() + FAR_NS
    training.train()
    training.gate._device = torch.device("cpu")
    for is_there in (False, True):
        begun.append(Done(is_there))
        training.rank.count_step(None, 0)
        assert (training.why_not() == "") is is_there and begun[-1].calls


def test_who_is_asked_for_a_part_does_not_save_all(training: Training) -> None:
    training.gate.asked_part = (0, 2)
    training.backward()
    assert training.why_not() == "it holds no part: nothing that it trains is sharded"


def test_before_the_first_step_there_is_nothing(make: Callable[..., Training]) -> None:
    one = make()
    one.backward()
    assert "has not been seen to finish a step" in one.why_not()


def test_it_is_of_the_step_that_the_others_have_finished(training: Training) -> None:
    training.backward()
    assert training.why_not(4) == "it has finished 3 steps, and others 4"


def test_within_a_step_and_after_one_that_raised_it_is_not(training: Training) -> None:
    whys = []

    def closure() -> torch.Tensor:
        training.backward()
        whys.append(training.why_not())
        if len(whys) > 1:
            raise ValueError("no such batch")
        return torch.zeros(())

    training.optimizer.step(closure)
    training.backward()
    assert training.why_not() == ""
    with pytest.raises(ValueError, match="no such batch"):
        training.optimizer.step(closure)
    training.backward()
    assert {*whys, training.why_not()} == {"an optimizer's step has begun and not ended"}


def test_two_optimizers_have_to_have_stepped_equally_often(training: Training) -> None:
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.watch(other)
    training.backward()
    other.step()
    training.backward()
    assert training.why_not() == "its optimizers have taken different numbers of steps"


def test_parameters_that_something_else_has_changed_are_of_no_step(training: Training) -> None:
    """As SAM does, which climbs before it steps."""
    training.backward()
    with torch.no_grad():
        training.model.module.weight.add_(1.0)
    assert "something has changed its parameters" in training.why_not()


def test_an_optimizer_that_steps_in_another_thread_is_trusted_no_more(training: Training) -> None:
    thread = threading.Thread(target=training.train)
    thread.start()
    thread.join()
    training.backward()
    assert training.why_not() == "an optimizer steps where that is not seen"


def test_nor_is_one_whose_steps_are_captured_in_a_graph(training: Training) -> None:
    """Hooks run as it is captured, and not as it is replayed: nothing would stand before that."""
    training.backward()
    training.rank.words[Field.CAPTURES] = 1
    training.optimizer.step()
    training.rank.words[Field.CAPTURES] = 0
    training.backward()
    assert training.why_not() == "an optimizer's step was captured in a graph, of which no replay is seen"


# A trainer's own -------------------------------------------------------------------------------------------------


class Saver:
    """A trainer's own way to save; whole where it stands in the place."""

    def __init__(self, place: object, *, has_closures: bool = False) -> None:
        self.place, self.has_closures, self.step = place, has_closures, 103
        self.entered, self.leave = threading.Event(), threading.Event()

    def why_not(self, places: set[Any], *, has_backward: bool) -> str:
        return "" if has_backward or self.place in places else "not there"

    def save(self, why_no_more: Callable[[], str]) -> str:
        self.entered.set()
        self.leave.wait(20)
        if why := why_no_more():
            raise ValueError(why)
        return __file__


def look(training: Training) -> str:
    """The place."""
    return training.why_not()


def by_itself(training: Training, saver: Saver) -> None:
    save_gate.register(training.rank, None)
    assert not training.rank.has_reached(Milestone.SAVES_IN_TIME)
    save_gate.attach(training.rank, saver)
    assert training.rank.has_reached(Milestone.SAVES_IN_TIME)


def test_a_trainer_knows_more_of_where_it_stands(training: Training) -> None:
    by_itself(training, Saver(look.__code__))
    assert (training.why_not(), look(training)) == ("not there", "")
    training.backward()
    assert training.why_not() == ""
    save_gate.register(training.rank, raises)
    training.optimizer.step()
    assert "what follows a step may not be done" in look(training), "the script's own function comes first"
    save_gate.register(training.rank, None)
    save_gate.attach(training.rank, None)
    assert not training.rank.has_reached(Milestone.SAVES_IN_TIME)


def test_where_it_has_failed_counts_as_where_it_stands(training: Training) -> None:
    def fail() -> None:
        raise ValueError("no such batch")

    by_itself(training, Saver(fail.__code__))
    with pytest.raises(ValueError, match="no such batch") as caught:
        fail()
    assert training.why_not() == "not there"
    training.gate.hold(caught.value)
    assert training.why_not() == ""


def test_gradients_that_are_computed_within_a_step_are_before_it(training: Training) -> None:
    """As Lightning does: the way on from there is shut while it is saved."""
    saver = Saver(look.__code__, has_closures=True)
    by_itself(training, saver)
    whys: list[str] = []
    order: list[str] = []

    def leave() -> None:
        order.append("saved")
        saver.leave.set()

    def closure() -> torch.Tensor:
        training.backward()
        whys.append(training.why_not())
        save = training.save()
        assert saver.entered.wait(20)
        threading.Timer(0.3, leave).start()
        training.gate.pass_closure()
        order.append("passed")
        assert "before its function was called" in told(save)["failed"], "there was nothing against it"
        whys.append(training.why_not())
        return torch.zeros(())

    training.optimizer.step(closure)
    assert whys == ["", "an optimizer's step has begun and not ended"]
    assert order == ["saved", "passed"]


def test_a_step_that_failed_before_its_gradients_were_used_has_changed_nothing(training: Training) -> None:
    by_itself(training, Saver(look.__code__, has_closures=True))

    def closure() -> None:
        training.backward()
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        training.optimizer.step(closure)
    assert training.why_not() == ""


def test_what_has_changed_while_it_was_saved_is_not_put_in_place(training: Training) -> None:
    saver = Saver(look.__code__)
    by_itself(training, saver)
    training.backward()
    save = training.save()
    assert saver.entered.wait(20)
    with torch.no_grad():
        training.model.module.weight.add_(1.0)
    saver.leave.set()
    assert "its parameters have changed meanwhile" in told(save)["failed"]


# What ------------------------------------------------------------------------------------------------------------


class ZeroRedundancyOptimizer(torch.optim.SGD):
    """By its name."""


class Done:
    """An event of a device."""

    def __init__(self, answer: object, calls: list[object] | None = None) -> None:
        self.answer, self.calls = answer, [] if calls is None else calls

    def query(self) -> bool:
        self.calls.append("query")
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (True, ""),
        (False, "its device has not got to the backward pass of the step under way"),
        (RuntimeError("CUDA error: unspecified launch failure"), "its device does not answer: CUDA error: unspecified"),
    ],
)
def test_a_device_has_to_have_done_all_that_came_before(
    answer: object, why: str, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[object] = []
    calls: list[object] = []
    monkeypatch.setattr(torch, "Stream", lambda device: streams.append(device) or device)
    monkeypatch.setattr(torch.accelerator, "set_stream", calls.append)
    monkeypatch.setattr(save_gate, "CATCHES_UP_NS", 50_000_000)
    training.gate.until_ns = time.monotonic_ns() + FAR_NS
    training.backward()
    training.gate._device, training.gate._begun = torch.device("cpu"), Done(answer, calls)
    assert training.why_not().startswith(why) and bool(training.why_not()) == bool(why)
    assert calls[:2] == [*streams, "query"], "of its device, before anything is asked"
    assert calls.count(streams[0]) == 2 and len(streams) == 1, "one, as often as it is looked at"
    training.rank.words[Field.CAPTURES] = 1
    assert training.why_not() == "its device captures a graph", "asked for nothing meanwhile"
    training.rank.words[Field.CAPTURES] = 0
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    assert "its communicators may be aborted" in training.why_not()


def test_the_event_of_the_step_before_says_nothing_of_this_one(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that saves may look between the beginning of a backward pass and its being recorded."""
    whys: list[str] = []
    monkeypatch.setattr(training.gate, "_use_own_stream", lambda: None)
    monkeypatch.setattr(training.gate, "_mark_begun", lambda: whys.append(training.why_not()))
    monkeypatch.setattr(save_gate, "CATCHES_UP_NS", 50_000_000)
    training.gate.until_ns = time.monotonic_ns() + FAR_NS
    training.gate._device, training.gate._begun = torch.device("cpu"), Done(True)
    training.backward()
    assert whys == ["its device has not got to the backward pass of the step under way"]
    assert training.why_not() == ""


def test_of_a_device_the_beginning_is_looked_at_as_it_lies_in_memory(training: Training) -> None:
    """Channels last, as convolutions are trained: no view of it is flat."""
    weight = torch.ones(8, 4, 3, 3).to(memory_format=torch.channels_last)
    weight[0, 3, 0, 0] = torch.inf
    assert save_gate._beginning(weight).isinf().any() and save_gate._beginning(weight).numel() == weight.numel()
    assert save_gate._beginning(torch.ones(9000)[1:]).numel() == save_gate.MAX_LOOKED_AT


def test_one_rank_has_to_hold_all_of_it(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    training.backward()
    why_not = training.why_not
    with monkeypatch.context() as patch:
        patch.setattr(training.rank, "world_size", 2)
        assert why_not() == "its model is replicated on a part of the ranks only"
    with monkeypatch.context() as patch:
        patch.setattr(training.model, "parameters_to_ignore", {"bias"})
        assert "not replicated" in why_not()
    with monkeypatch.context() as patch:
        patch.setattr(training.rank, "spent", None)
        assert why_not() == "it trains no DistributedDataParallel model"
    assert why_not() == ""
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert why_not() == "it trains parameters beside its DistributedDataParallel model"


def test_what_is_sharded_is_not_saved(make: Callable[..., Training]) -> None:
    one = make()
    one.optimizer = ZeroRedundancyOptimizer(one.model.parameters(), lr=0.1)
    one.watch(one.optimizer)
    one.train()
    one.backward()
    assert one.why_not() == "what it trains is sharded"


def test_statistics_that_hold_the_step_under_way_are_not_saved(make: Callable[..., Training]) -> None:
    one = make(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    one.train(2)
    one.backward()
    assert one.why_not().startswith("its BatchNorm1d has counted the batch")
    one.model.eval()
    assert one.why_not() == ""


def test_what_is_no_number_is_not_saved(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] = float("nan")
    training.train()
    training.backward()
    assert training.why_not() == "its parameters are not finite"


# The save --------------------------------------------------------------------------------------------------------


def test_training_stands_before_its_step_until_the_function_is_done(training: Training, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def function() -> Path:
        before = training.model.module.weight.detach().clone()
        entered.set()
        leave.wait(20)
        assert torch.equal(before, training.model.module.weight)
        order.append("saved")
        (tmp_path / "a.pt").write_bytes(b"1")
        return tmp_path / "a.pt"

    training.function = function
    training.backward()
    save = training.save()
    assert entered.wait(20)
    threading.Timer(0.3, leave.set).start()
    training.optimizer.step()
    order.append("stepped")
    assert order == ["saved", "stepped"]
    answer = told(save)
    assert (answer["path"], answer["step"]) == (str(tmp_path / "a.pt"), 3)
    assert answer["inode"] == os.stat(answer["path"]).st_ino and answer["took_s"] >= 0.3
    training.train()
    assert training.rank.step_now() == 5


def test_a_moment_that_does_not_come_is_not_waited_for_long(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guardrun.hooks.examine.in_time_save.MOMENT_NS", 50_000_000)
    called: list[int] = []
    training.function = lambda: called.append(1)
    answer = told(training.save())
    assert "what follows a step may not be done" in answer["why"] and not called
    training.train()  # the way is open


def test_a_moment_that_comes_is_waited_for(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrun.hooks.examine.in_time_save.MOMENT_NS", 60 * 10**9)
    training.function = lambda: (tmp_path / "part").write_bytes(b"1") and str(tmp_path)
    save = training.save()
    training.backward()
    assert told(save)["path"] == str(tmp_path)


def test_one_that_trains_on_saves_after_whichever_step_it_has_finished(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is to be ended soon: with its next backward pass, wherever it is by then."""
    monkeypatch.setattr("guardrun.hooks.examine.in_time_save.MOMENT_NS", 60 * 10**9)
    training.function = lambda: (tmp_path / "part").write_bytes(b"1") and str(tmp_path)
    training.train()
    save = training.save(step=LAST_STEP)
    training.train(2)
    training.backward()
    answer = told(save)
    assert answer["path"] == str(tmp_path) and answer["step"] in (4, 5, 6)
    training.optimizer.step()
    assert training.rank.step_now() == 7


def shift(model: nn.Module) -> None:
    """As adversarial training does, mostly: torch counts no writes to `.data`."""
    for parameter in model.parameters():
        parameter.data.add_(1)


def climb(model: nn.Module) -> None:
    """As SAM does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


@pytest.mark.parametrize("move", [shift, climb])
def test_what_moves_between_two_passes_while_it_is_saved_is_of_no_step(
    move: Callable[[nn.Module], None], training: Training, tmp_path: Path
) -> None:
    """The thread that trains on stands nowhere before its optimizer's step."""
    entered, leave = threading.Event(), threading.Event()

    def function() -> str:
        entered.set()
        leave.wait(20)
        (tmp_path / "part").write_bytes(b"1")
        return str(tmp_path)

    training.function = function
    training.backward()
    save = training.save(step=LAST_STEP)
    assert entered.wait(20)
    move(training.model)
    training.backward()
    leave.set()
    assert "meanwhile" in told(save)["failed"]


def test_who_averages_gradients_twice_a_step_is_not_asked_while_it_trains_on(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shifts between the two passes could be half-way through when its function ends."""
    monkeypatch.setattr(save_gate, "WARY_STEPS", 2)
    training.backward()
    training.train()
    training.backward()
    assert training.why_not(LAST_STEP) == "it averages gradients more than once a step, and trains on"
    assert training.why_not() == "", "it stands in the first one, where a peer is gone"
    training.optimizer.step()
    training.train()
    training.backward()
    assert training.why_not(LAST_STEP) == "", "a scaler left one out"


def test_one_that_trains_on_does_not_have_its_trainer_save(training: Training) -> None:
    """It asks should_checkpoint() by itself, and saves with all ranks."""
    by_itself(training, Saver(None))
    training.backward()
    assert told(training.save(step=LAST_STEP)) == {"why": "its trainer saves where should_checkpoint() says so"}


# … after a step that it has not come to yet --------------------------------------------------------------------------


def halting(training: Training, step: int, **more: Any) -> InTimeSave:
    save = training.save(step=step, halt=True, **more)
    wait_until(lambda: training.gate._halt_step == step, 20, "it to be told")
    return save


def test_it_trains_on_up_to_there_and_stands_until_the_function_is_done(training: Training, tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def function() -> str:
        entered.set()
        leave.wait(20)
        order.append(f"saved after {training.rank.step_now()}")
        (tmp_path / "part").write_bytes(b"1")
        return str(tmp_path)

    training.function = function
    save = halting(training, 5)
    training.train(2)
    assert not entered.is_set() and not training.gate.is_halted
    threading.Thread(target=lambda: (entered.wait(20), time.sleep(0.2), leave.set())).start()
    training.train()
    order.append("stepped")
    assert order == ["saved after 5", "stepped"] and not training.gate.is_halted
    answer = told(save)
    assert (answer["path"], answer["step"]) == (str(tmp_path), 5)
    training.train(2)
    assert training.rank.step_now() == 8


def test_gradients_of_several_passes_are_whole_by_then(training: Training, tmp_path: Path) -> None:
    training.function = lambda: (tmp_path / "part").write_bytes(b"1") and str(tmp_path)
    save = halting(training, 4)
    for _ in range(2):
        training.backward()
        training.backward()
        training.optimizer.step()
    answer = told(save)
    assert (answer.get("path"), answer.get("step")) == (str(tmp_path), 4), answer


def test_who_had_come_there_before_it_was_told_is_not_kept(training: Training) -> None:
    why = "it had finished 3 steps by the time that it was to save after 3"
    assert told(training.save(step=3, halt=True)) == {"why": why}
    training.train(2)
    assert training.gate._halt_step == 0


def test_who_has_nothing_more_to_do_does_not_wait_for_it_with_its_end(training: Training) -> None:
    save = halting(training, 9)
    end = threading.Thread(target=training.gate.finish)
    end.start()
    assert told(save) == {"why": "its script has ended, before it began another step after 9"}
    end.join(20)
    assert not end.is_alive()


def test_who_does_not_come_there_in_time_is_not_kept(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    save = halting(training, 9)
    monkeypatch.setattr("guardrun.hooks.examine.in_time_save.LEAVE_NS", FAR_NS)
    assert "it has not come to the end of step 9" in told(save)["why"]
    training.train(8)


def test_all_of_its_optimizers_come_there(training: Training, tmp_path: Path) -> None:
    other = torch.optim.SGD(training.model.parameters(), lr=0.1)
    training.watch(other)
    for _ in range(3):
        other.step()
    counts: list[set[int]] = []

    def function() -> str:
        counts.append(set(training.gate._counts.values()))
        (tmp_path / "part").write_bytes(b"1")
        return str(tmp_path)

    training.function = function
    save = halting(training, 4)
    for _ in range(2):
        training.train()
        other.step()
    assert told(save).get("step") == 4 and counts == [{4}]


def test_an_optimizer_within_another_one_is_not_kept(training: Training) -> None:
    save = halting(training, 4)
    training.train()
    training.gate._depth = 1
    training.gate._before(training.optimizer, (), {})
    training.gate._depth = 0
    assert not training.gate.is_halted
    save.end()


def test_one_that_fails_there_lets_training_go_on(training: Training) -> None:
    training.function = raises
    save = halting(training, 4)
    training.train(3)
    assert told(save) == {"failed": "OSError: no space left for this"} and training.rank.step_now() == 6


def raises() -> None:
    raise OSError("no space left for this")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises, "OSError: no space left for this"),
        (lambda: None, "its function returned no path"),
        (lambda: 7, "its function returned no path, but int"),
        (lambda: b"a.pt", "its function returned no path, but bytes"),
        (lambda: "", "its function returned no path, but str"),
        (lambda: "/nowhere/a.pt", "is not there"),
        (lambda: "a\0b", "is not there"),
        (lambda: __file__, "was written before its function was called"),
        (lambda: os.path.dirname(__file__), "was written before its function was called"),
    ],
)
def test_what_goes_wrong_is_told_and_training_could_go_on(
    function: Callable[[], object], why: str, training: Training
) -> None:
    training.function = function
    training.backward()
    assert why in told(training.save())["failed"]
    training.train()


def test_one_that_takes_too_long_is_answered_for(training: Training) -> None:
    leave = threading.Event()
    training.function = lambda: leave.wait(20)
    training.backward()
    save = training.save(until_ns=time.monotonic_ns() + 1_500_000_000)
    wait_until(lambda: training.gate.is_shut, 20, "the function to be called")
    assert save.on_beat(save.ends_ns - 1) is None
    assert save.on_beat(save.ends_ns) == {"failed": "its time was over"}
    save.end()
    training.optimizer.step()  # which stands until then, and no longer
    assert time.monotonic_ns() >= save.ends_ns
    leave.set()


def test_what_it_writes_by_torch_is_not_told_as_any_other_save(training: Training, tmp_path: Path) -> None:
    from guardrun.hooks.saves.checkpoint_files import path_at, wrap_save

    save = wrap_save(torch.save, training.rank, path_at(1, "f"), "torch.save")

    def function() -> Path:
        save({"a": 1}, tmp_path / "a.pt")
        return tmp_path / "a.pt"

    training.function = function
    training.backward()
    assert "path" in told(training.save())
    assert training.rank.words[Field.SAVES] == 0
    function()
    assert training.rank.words[Field.SAVES] == 1


# The script's call -----------------------------------------------------------------------------------------------


def test_the_last_function_counts_and_none_takes_it_back(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "active", rank)
    guardrun.hooks.save_with(None)
    assert rank.in_time is None
    for function in (lambda: "a", lambda: "b"):
        guardrun.hooks.save_with(function)
    assert isinstance(rank.in_time, SaveGate) and rank.in_time.function is function
    assert rank.has_reached(Milestone.SAVES_IN_TIME)
    guardrun.hooks.save_with("out/a.pt")  # type: ignore[arg-type]
    assert rank.in_time.function is function and rank.outbox.get(0.0) is not None, "told, and nothing else"
    guardrun.hooks.save_with(None)
    assert not rank.has_reached(Milestone.SAVES_IN_TIME)
    with pytest.raises(ValueError, match="no function"):
        InTimeSave(rank, {"step": 3, "until_ns": FAR_NS})


def test_where_nobody_would_call_it_it_does_nothing(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "active", rank)
    rank.settings["jit"] = False
    guardrun.hooks.save_with(raises)
    assert rank.in_time is None and not rank.has_reached(Milestone.SAVES_IN_TIME)


def test_outside_guardrun_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "active", None)
    guardrun.hooks.save_with(raises)


# The end ---------------------------------------------------------------------------------------------------------


def test_only_who_has_lost_a_peer_waits_with_its_end(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(seconds)

    monkeypatch.setattr(save_gate, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(save_gate, "PEER_WAIT_S", 0.5)
    lost = RuntimeError("[pair.cc:537] gloo: Connection reset by peer")
    for error in (lost, dist.DistBackendError("watchdog")):
        began_s = time.monotonic()
        training.gate.hold(error)
        assert time.monotonic() - began_s >= 0.5
    slept.clear()
    for error in (ValueError("gloo"), RuntimeError("shapes differ")):
        training.gate.hold(error)
    assert slept == []


def test_who_is_to_be_stopped_waits_no_longer(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of its script's may keep SIGTERM from ending it."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        training.rank.words[Field.STOPPING] = 1

    monkeypatch.setattr(save_gate, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(save_gate, "PEER_WAIT_S", 3600.0)
    for _ in range(2):
        training.gate.hold(RuntimeError("gloo: Connection reset by peer"))
    assert len(slept) == 1


def test_who_is_asked_meanwhile_waits_until_it_has_saved(training: Training, tmp_path: Path) -> None:
    def function() -> Path:
        time.sleep(0.3)
        (tmp_path / "a").write_bytes(b"1")
        return tmp_path

    training.function = function
    training.backward()
    save = training.save()
    answers: list[dict[str, Any]] = []
    beat = threading.Thread(target=lambda: answers.append(told(save)))
    beat.start()
    training.gate.hold(RuntimeError("gloo: Connection reset by peer"))
    assert training.gate.is_answered and not training.gate.is_shut
    beat.join()
    assert answers[0]["path"] == str(tmp_path)


class Pressed:
    """Ctrl-C at the first look at a clock."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        if self.looks == 1:
            raise KeyboardInterrupt
        return 0


def test_ctrl_c_ends_it_while_the_function_goes_on(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once more as the interpreter ends, either."""
    gate = training.gate
    gate.until_ns = time.monotonic_ns() + FAR_NS
    for error in (KeyboardInterrupt(), ValueError("bad batch")):
        gate.is_asked, gate.is_answered = True, False
        pressed = Pressed()
        monkeypatch.setattr(save_gate, "monotonic_ns", pressed)
        gate.hold(error)
        assert gate.is_answered
        gate.finish()
    assert pressed.looks == 1


class ReadGate(SaveGate):
    """Notes at which depth it is read whether the gate is shut, and opens it once it has been found shut."""

    def __init__(self, rank: Rank) -> None:
        self.reads: list[tuple[bool, int]] = []
        self._value = False
        super().__init__(rank)

    @property
    def is_shut(self) -> bool:
        value = self._value
        self.reads.append((value, self._depth))
        self._value = False
        return value

    @is_shut.setter
    def is_shut(self, value: bool) -> None:
        self._value = value


def test_nobody_gets_in_between_two_looks(rank: Rank) -> None:
    """Who was told that the way is open is within the step already, for whoever shuts it again just then."""
    gate = ReadGate(rank)
    gate.until_ns = time.monotonic_ns() + FAR_NS
    gate.is_shut = True
    gate._before(None, (), {})
    assert gate.reads == [(True, 1), (False, 1)] and gate._depth == 1
