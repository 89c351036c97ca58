"""Modules are timed for some steps on request; training computes the same bits, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from guardrun.hooks.examine.module_calls import ROW_BYTES
from guardrun.hooks.examine.module_times import ModuleTimes
from guardrun.hooks.patches.optimizer_steps import OptimizerSteps
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import (
    MAX_TRACE_BYTES,
    answer_name,
    read_whole,
    request_name,
    stop_name,
    write_whole,
)
from guardrun.hooks.wire.messages import HookFailed
from tests.hooks.bed import Bed, finish

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "traced_steps.py")
SECOND = 1_000_000_000
ASKED: dict[str, Any] = {"steps": 2, "seconds": 60, "bytes": 100_000}


def test_bits_graphs_and_modules_are_the_same_as_without(bed: Bed, tmp_path: Path) -> None:
    """In every manner of training that tests/hooks/ranks/traced_steps.py has."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")}
    commands = {how: [SCRIPT, str(tmp_path / how), how] for how in ("plain", "trace")}
    for how in commands:
        (tmp_path / how).mkdir()
    subprocess.run([sys.executable, *commands["plain"]], env=environment, check=True)
    done = finish(bed.start(commands["trace"]))
    assert done.returncode == 0, done
    for name in ("digests", "left"):
        plain, traced = (json.loads((tmp_path / how / name).read_text()) for how in ("plain", "trace"))
        assert traced == plain and len(plain) >= 18
    assert bed.hear_all(HookFailed) == []
    told: dict[str, Any] = json.loads((tmp_path / "trace" / "told").read_text())
    refused = told.pop("compiled hooked")
    assert refused == "modules with hooks of their own are compiled: they would be compiled once more for ours"
    assert len(told) == 17 and all(one["rows"] and not one["left_out"] for one in told.values())
    calls = {name: _count(one) for name, one in told.items() if name != "compiled late"}
    inner = ["blocks.0.inner", "blocks.0.relu", "blocks.0.outer", "blocks.1.inner", "blocks.1.relu", "blocks.1.outer"]
    block = {"blocks.0": 2, "blocks.1": 1, "split": 3, "drop": 1, "head": 1, "": 1, "embed": 1}
    forward = block | {name: 2 if name.startswith("blocks.0") else 1 for name in inner}
    assert calls["plain"]["forward"] == forward
    # What is written over in place gives no gradient away, and the third call of `split` gives out nothing.
    unseen = {"blocks.0.inner", "blocks.0.outer", "blocks.1.inner", "blocks.1.outer"}
    backward = {name: count for name, count in forward.items() if name not in unseen} | {"split": 2}
    assert calls["plain"]["backward"] == backward
    assert calls["accumulated"]["forward"] == {name: 3 * count for name, count in forward.items()}
    assert calls["evaluated"]["forward"] == {name: 2 * count for name, count in forward.items()}
    assert calls["evaluated"]["backward"] == backward
    again = {name: count for name, count in forward.items() if name.startswith("blocks")}
    assert calls["checkpointed True"]["recompute"] == again
    # This one stops as soon as it has what it needs: calls that do not return.
    unfinished = {"blocks.0", "blocks.1", "blocks.0.outer", "blocks.1.outer"}
    early = {name: count for name, count in again.items() if name not in unfinished}
    assert calls["checkpointed False"]["recompute"] == early
    for name, one in (("compiled in place", "Net"), ("compiled block", "blocks.1"), ("compiled late", "inner")):
        assert told[name]["compiled"] == [one]
    late = told.pop("compiled late")
    assert late["is_compiled"] and late["is_cut"] and late["rows"]
    assert not any(one["is_compiled"] or one["is_cut"] for one in told.values())
    assert "module.blocks.0.inner" in calls["replicated"]["forward"]


def _count(told: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Calls of each module in a step, by stage."""
    counts: dict[str, dict[str, int]] = {}
    for row in told["rows"].split(";"):
        _, place, stage, took_ns, allocated = map(int, row.split())
        assert took_ns >= 0 and allocated > 1 << 20
        of_stage = counts.setdefault(told["stages"][stage], {})
        of_stage[told["names"][place]] = of_stage.get(told["names"][place], 0) + 1
    steps = len(told["steps"])
    assert all(count % steps == 0 for of_stage in counts.values() for count in of_stage.values())
    return {stage: {name: count // steps for name, count in named.items()} for stage, named in counts.items()}


def rows(told: dict[str, Any]) -> list[list[str]]:
    return [row.split() for row in told["rows"].split(";")]


# In this process -----------------------------------------------------------------------------------------------------


class Training:
    """A model in this process, whose steps are counted as in a rank."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        rank.steps = self.counter = OptimizerSteps(rank)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.optimizer.register_step_post_hook(self.counter.on_step)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()

    def ask(self, **changes: Any) -> ModuleTimes:
        return ModuleTimes(self.rank, {**ASKED, **changes})


def hooks_of_torch() -> list[int]:
    return [len(value) for name, value in vars(global_hooks).items() if name.startswith("_global_") and value]


@pytest.fixture
def training(rank: Rank) -> Iterator[Training]:
    before, asks = hooks_of_torch(), global_hooks._has_any_global_hook
    one = Training(rank)
    one.step(5)
    yield one
    assert hooks_of_torch() == before and global_hooks._has_any_global_hook is asks
    assert rank.steps is one.counter and one.counter._and_then.__name__ == "on_step"


def test_hooks_come_with_a_step_and_go_with_one(training: Training) -> None:
    one = training.ask()
    assert hooks_of_torch() == [] and one.on_beat(0) is None
    training.step()
    assert hooks_of_torch() == [1, 1] and not global_hooks._has_any_global_hook()
    training.step()
    assert hooks_of_torch() == [1, 1] and one.on_beat(0) is None
    training.step()
    assert hooks_of_torch() == []
    told = one.on_beat(0)
    assert told is not None and [step for step, _ in told["steps"]] == [7, 8] and not told["is_cut"]
    assert told["names"] == ["", "0", "1"] and len(rows(told)) == 12
    assert {row[0] for row in rows(told)} == {"7", "8"} and told["memory"] == "host"


def test_what_was_asked_for_ends_in_time_without_a_step(training: Training) -> None:
    descriptors = os.listdir("/proc/self/fd")
    one = training.ask()
    with pytest.raises(ValueError, match="no optimizer's step ended on the thread that trains"):
        one.on_beat(one.ends_ns)
    training.step(3)
    assert hooks_of_torch() == []
    two = training.ask(steps=100)
    training.step(3)
    told = two.on_beat(two.ends_ns)
    assert told is not None and told["is_cut"] and len(told["steps"]) == 2 and hooks_of_torch() == []
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    training.step()


def test_a_child_has_no_hooks(training: Training) -> None:
    training.rank.examination = training.ask()
    training.step()
    pid = os.fork()
    if not pid:
        try:
            training.rank.become_child()
            os._exit(len(hooks_of_torch()))
        finally:
            os._exit(9)
    assert os.waitpid(pid, 0)[1] == 0
    assert hooks_of_torch() == [1, 1]
    training.rank.examination.end()
    training.rank.examination = None


def test_hooks_do_not_come_while_another_thread_is_in_a_module(training: Training) -> None:
    goes_on, is_in = threading.Event(), threading.Event()

    class Slow(nn.Module):  # type: ignore[misc]  # mypy skips torch
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            is_in.set()
            goes_on.wait(60)
            return x

    thread = threading.Thread(target=lambda: Slow()(torch.ones(1)))
    thread.start()
    try:
        assert is_in.wait(60)
        one = training.ask()
        training.step(2)
        assert hooks_of_torch() == []
        with pytest.raises(ValueError, match="another thread was in a module"):
            one.on_beat(one.ends_ns)
        two = training.ask()
        goes_on.set()
        thread.join()
        training.rank.pace.quiet_until = 0  # as each beat does
        training.step(3)
        assert two.on_beat(0) is not None
    finally:
        goes_on.set()
        thread.join()


def test_hooks_do_not_come_within_a_capture_or_a_backward_pass(training: Training) -> None:
    one = training.ask()
    training.rank.words[Field.CAPTURES] = 1
    training.step()
    assert hooks_of_torch() == []
    training.rank.words[Field.CAPTURES] = 0
    training.rank.pace.quiet_until = 0
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: training.optimizer.step())
    y.sum().backward()
    assert hooks_of_torch() == []
    training.rank.pace.quiet_until = 0
    training.step(3)
    assert one.on_beat(0) is not None


def test_an_answer_has_its_bounds(training: Training) -> None:
    one = training.ask(steps=100, bytes=16_000)
    training.step(120)
    told = one.on_beat(0)
    assert told is not None and told["left_out"] > 0 and told["is_cut"] and len(told["steps"]) < 40
    assert ROW_BYTES * (len(rows(told)) + 8) > 16_000 - 4096 - 3200
    assert len(json.dumps(told)) < 16_000


def test_several_optimizers_are_one_step(training: Training) -> None:
    other = torch.optim.SGD(training.model.parameters(), 0.1)
    other.register_step_post_hook(training.counter.on_step)
    one = training.ask()
    for _ in range(4):
        training.step()
        training.model(torch.ones(2, 4)).sum().backward()
        other.step()
    told = one.on_beat(0)
    assert told is not None and len(told["steps"]) == 2 and len(rows(told)) == 24


def test_modules_are_named_by_the_largest_that_has_them(training: Training) -> None:
    loss, gone = nn.MSELoss(), nn.Linear(4, 4)
    one = training.ask(steps=1)
    training.step()
    gone(torch.ones(1, 4))
    del gone
    loss(training.model(torch.ones(2, 4)), torch.ones(2, 4)).backward()
    training.optimizer.step()
    told = one.on_beat(0)
    assert told is not None and told["names"] == ["(gone)", "", "0", "1", "MSELoss"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"steps": 0}, "steps can be traced"),
        ({"steps": 1001}, "steps can be traced"),
        ({"seconds": 0}, "steps can be traced"),
        ({"seconds": float("nan")}, "steps can be traced"),
        ({"seconds": 601}, "steps can be traced"),
        ({"bytes": 100}, "bytes is too short"),
        ({"bytes": MAX_TRACE_BYTES + 1}, "bytes is too short, or too long"),
    ],
)
def test_what_is_refused(training: Training, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        training.ask(**changes)


def test_a_rank_without_optimizers(rank: Rank) -> None:
    with pytest.raises(ValueError, match="has not imported torch's optimizers"):
        ModuleTimes(rank, ASKED)


TRAINS = """
import time, torch
from guardrun.hooks.rank.rank import active
from guardrun.hooks.wire.board import Field
from torch.nn.modules.module import _global_forward_hooks

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while active.words[Field.EXAMINE_GIVEN] < 2:
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
print(len(_global_forward_hooks), active.examination)
"""


def test_a_rank_that_takes_quiet_steps_is_traced_and_told_to_stop(bed: Bed) -> None:
    process = bed.start(["-c", TRAINS])
    bed.wait_until(Field.STEP, lambda step: step > 200)

    def ask(number: int, **changes: Any) -> None:
        request = {"number": number, "what": "modules", "arguments": {**ASKED, **changes}}
        write_whole(str(bed.sockets / request_name(0, 0)), request)
        bed.board().words[Field.EXAMINE_ASKED] = number

    ask(1)
    bed.wait_until(Field.EXAMINE_GIVEN, lambda given: given == 1)
    told = read_whole(str(bed.sockets / answer_name(0, 0)), 1, MAX_TRACE_BYTES)["told"]
    assert told["names"] == [""] and len(told["steps"]) == 2 and len(rows(told)) == 4
    ask(2, steps=1000, bytes=MAX_TRACE_BYTES)
    write_whole(str(bed.sockets / stop_name(0, 0)), {"number": 1, "what": "modules"})  # of an earlier one
    bed.wait_until(Field.EXAMINE_TAKEN, lambda taken: taken == 2)
    write_whole(str(bed.sockets / stop_name(0, 0)), {"number": 2, "what": "modules"})
    bed.wait_until(Field.EXAMINE_GIVEN, lambda given: given == 2)
    done = finish(process)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 None\n", "")
