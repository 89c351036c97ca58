"""Steps of which there is only to be counted are quiet; what is told of training is as if there were none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.checksums import checker as checking
from guardrun.hooks.checksums.checker import Checker
from guardrun.hooks.checksums.replicas import ReplicaSet
from guardrun.hooks.patches import metrics as computing
from guardrun.hooks.patches import optimizer_steps
from guardrun.hooks.patches.metrics import ALL_READ, KEPT
from guardrun.hooks.patches.optimizer_steps import MAX_QUIET, OptimizerSteps
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.metrics_page import Flag
from tests.hooks.metric_records import read_page

MS = 1_000_000
SHORT_NS = 2_600_000
"""One in eight is read."""
SPENT = (Field.SPENT_STEPS, Field.SPENT_NS, Field.SPENT_WAITED_NS, Field.SPENT_DATA_NS, Field.SPENT_GC_NS)


class Number:
    """A loss on the host."""

    is_cpu, ndim = True, 0

    def __init__(self, value: float) -> None:
        self.value = value

    def tolist(self) -> float:
        return self.value

    def detach(self) -> Number:
        return self

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def item(self) -> float:
        return self.tolist()

    def backward(self, gradient: object = None) -> None:
        pass


class Optimizer:
    """As much of one as the hooks need."""

    def __init__(self) -> None:
        self.param_groups = [{"lr": 0.1, "params": list[Any]()}]
        self.found_inf: Any = None


class Training:
    """A rank in this process that trains, by a clock of its own."""

    def __init__(self, rank: Rank, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        rank.sockets = str(folder)
        self.now_ns = 10**12
        number = type("Number", (Number,), {"backward": Number.backward})
        self.torch = SimpleNamespace(
            Tensor=number, overrides=SimpleNamespace(has_torch_function_unary=lambda one: False)
        )
        computing.install(self.torch, rank)
        self.metrics: Any = rank.metrics
        self.metrics._tensor = self.torch.Tensor
        self.metrics._devices._kinds = (self.torch.Tensor,)
        self.steps = OptimizerSteps(rank)
        self.optimizer = Optimizer()
        self.losses: list[float] = []
        self.looks = 0

    def step(self, took_ns: int, loss: float | None = None, optimizer: Optimizer | None = None) -> None:
        """One step of that length; its loss is its number."""
        self.losses.append(len(self.losses) + 1.0 if loss is None else loss)
        self.torch.Tensor(self.losses[-1]).backward()
        self.now_ns += took_ns
        self.steps.on_step(optimizer or self.optimizer, (), {})

    def read(self) -> list[tuple[int, float]]:
        """Steps and losses that are on the page."""
        return [(record.step, record.loss) for record in read_page(self.folder)[0]]


@pytest.fixture
def training(rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    one = Training(rank, tmp_path)
    for module in (optimizer_steps, computing):
        monkeypatch.setattr(module, "monotonic_ns", lambda: one.now_ns)
    look = OptimizerSteps._look

    def count(*args: Any) -> None:
        one.looks += 1
        look(*args)

    monkeypatch.setattr(OptimizerSteps, "_look", count)
    yield one
    one.metrics.close()


@pytest.mark.parametrize(("took_ms", "every"), [(100, 1), (11, 1), (9.9, 4), (5, 4), (2.6, 8), (1, 16), (0.01, 16)])
def test_of_short_steps_one_in_so_many_is_read(training: Training, took_ms: float, every: int) -> None:
    count = 1000
    for _ in range(count):
        training.step(int(took_ms * MS))
    words = training.rank.words
    assert words[Field.PULSES] == words[Field.STEP] == count
    assert (words[Field.PROGRESS_NS], words[Field.STEP_NS]) == (training.now_ns, training.now_ns)
    training.metrics.close()
    first = ALL_READ + 2 * max(every, KEPT)
    read = training.read()
    assert all(loss == step for step, loss in read)
    assert [step for step, _ in read if step <= ALL_READ] == list(range(1, ALL_READ + 1))
    late = [step for step, _ in read if step > first]
    assert late == [step for step in range(first + 1, count + 1) if step % every == 0]
    if every > 1:
        assert 0 <= count - len(read) - read_page(training.folder)[1] <= 2 * KEPT * every
        assert training.looks < ALL_READ + count / 2
    assert training.looks >= count / MAX_QUIET


def test_what_is_not_finite_is_on_the_page_at_once(training: Training) -> None:
    while not training.metrics.mask or len(training.losses) % 8 != 7:
        training.step(SHORT_NS)
    training.metrics.mask = 7
    kept = len(training.read())
    for _ in range(2 * 8):
        training.step(SHORT_NS)
    assert len(training.read()) == kept, "steps are written down together"
    bad = len(training.losses) + 1
    for _ in range(8):
        training.step(SHORT_NS, math.nan)
    read = training.read()
    assert read[-1][0] == bad and math.isnan(read[-1][1])
    assert read[-2] == (bad - 8, bad - 8)
    assert read_page(training.folder)[0][-1].flags & Flag.LOSS_NAN


def test_what_else_there_is_of_a_step_is_written_down_with_it(training: Training) -> None:
    """A step of two losses, and one that a guard leaves out, whether it is one that is read or not."""
    while training.metrics.mask != 7 or len(training.losses) % 8 != 7:
        training.step(SHORT_NS)
    training.torch.Tensor(0.5).backward()
    training.step(SHORT_NS)
    training.metrics.flush()
    assert training.read()[-1] == (len(training.losses), len(training.losses) + 0.5)
    training.rank.guard = training.metrics
    training.step(SHORT_NS)
    training.rank.pace.quiet_until = 0
    training.metrics.on_guarded(is_own=True, is_far=False)
    training.step(SHORT_NS)
    last = read_page(training.folder)[0][-1]
    assert last.step == len(training.losses) and last.flags & Flag.LEFT_OUT


def test_with_another_optimizer_all_steps_are_read(training: Training) -> None:
    while training.metrics.mask != 7:
        training.step(SHORT_NS)
    other = Optimizer()
    training.step(
        SHORT_NS, 1e3, other
    )  # counts among the other steps: a step of both is over when the first steps again
    for number in range(100):
        training.step(SHORT_NS, 2.0, training.optimizer)
        training.step(SHORT_NS, 3.0, other if number % 2 else training.optimizer)
    training.metrics.close()
    late = [loss for step, loss in training.read() if step > ALL_READ and loss in (2.0, 3.0, 5.0)]
    assert sum(late) == 100 * 5.0 - 3.0, "all but that of the last step, which the first optimizer has not ended"


def test_where_the_script_says_its_loss_every_one_is_told(training: Training) -> None:
    while training.metrics.mask != 7:
        training.step(SHORT_NS)
    said = []
    for number in range(50):
        training.step(SHORT_NS)
        training.metrics.note_said(1000.0 + number, None)
        said.append(1000.0 + number)
    training.metrics.close()
    assert [loss for _, loss in training.read() if loss >= 1000.0] == said
    steps = [step for step, loss in training.read() if loss > 1000.0]
    assert steps == list(range(steps[0], steps[0] + 49)) and steps[-1] == training.rank.words[Field.STEP]


def test_what_a_scaler_leaves_out_is_marked_however_short_steps_are(training: Training) -> None:
    """A fused optimizer leaves the step out itself, and torch's hooks hear of it like any other."""
    while training.metrics.mask != 7:
        training.step(SHORT_NS)
    first = len(training.losses) + 1
    for number in range(40):
        training.metrics.see_scaled(training.torch.Tensor(1.0), training.torch.Tensor(1024.0))
        training.optimizer.found_inf = training.torch.Tensor(float(number % 5 == 4))
        training.metrics.see_norm(training.torch.Tensor(math.inf if number % 5 == 4 else 1.0))
        training.step(SHORT_NS)
    late = [record for record in read_page(training.folder)[0] if record.step > first]
    assert [record.step for record in late] == list(range(first + 1, first + 40))
    assert [bool(record.flags & Flag.SKIPPED) for record in late] == [number % 5 == 4 for number in range(1, 40)]


def test_a_loss_that_raises_when_it_is_read_ends_no_backward_pass(training: Training) -> None:
    def fail(_: object) -> float:
        raise KeyError("a mode of the script's")

    training.step(SHORT_NS)
    training.torch.Tensor.tolist = fail
    for _ in range(2):
        training.step(SHORT_NS)
    assert training.rank.words[Field.STEP] == 3 and len(training.read()) == 1


def test_the_scripts_own_count_stands(training: Training) -> None:
    while training.metrics.mask != 7:
        training.step(SHORT_NS)
    training.rank.count_step(7, training.now_ns)
    for _ in range(20):
        training.step(SHORT_NS)
    assert training.rank.words[Field.STEP] == 7


def spent(folder: Path, monkeypatch: pytest.MonkeyPatch, lengths_ns: list[int], *, is_quiet: bool) -> list[int]:
    """What steps of these lengths are told to have gone to."""
    with monkeypatch.context() as patched:
        one = Training(Rank({"sockets": str(folder)}, 0), folder)
        for module in (optimizer_steps, computing):
            patched.setattr(module, "monotonic_ns", lambda: one.now_ns)
        if not is_quiet:
            patched.setattr(OptimizerSteps, "_plan", lambda *_: 0)
        for number, took_ns in enumerate(lengths_ns):
            one.rank.words[Field.DATA_TOTAL_NS] += number % 3 * 1000
            one.step(took_ns)
        one.metrics.close()
        return [one.rank.words[field] for field in SPENT]


def test_what_steps_went_to_is_the_same_without_quiet_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    chance = random.Random(4)
    for round_ in range(8):
        base = 10 ** chance.uniform(5, 7.5)
        lengths = [int(base * chance.uniform(0.7, 1.5) * (40 if chance.random() < 0.01 else 1)) for _ in range(3000)]
        folders = [tmp_path / f"{round_}-{kind}" for kind in (0, 1)]
        for folder in folders:
            folder.mkdir()
        quiet, plain = (
            spent(folder, monkeypatch, lengths, is_quiet=bool(number)) for number, folder in enumerate(folders)
        )
        assert quiet == plain
        assert quiet[0] > 0 or sum(lengths) < 3 * 10**9


class Steps(ReplicaSet):
    """A set that is only counted, of some of the optimizers."""

    def __init__(self, of: set[int]) -> None:
        super().__init__("a model", [0, 1], 0, 0)
        self.of = of

    def find(self) -> list[tuple[str, Any]]:
        return []

    def adopt(self, optimizer: Any, parameters: set[int]) -> bool:
        return id(optimizer) in self.of and super().adopt(optimizer, {id(self)})

    def parameters(self) -> list[tuple[str, Any]] | None:
        return [("weight", self)]


def check(
    rank: Rank, base: int, orders: list[int], joins: dict[int, set[int]], seen: Callable[[Checker, int, Any], None]
) -> Any:
    """Which checks were made, by step and set, and how far sets were counted."""
    checks: list[tuple[int, int]] = []
    checker = Checker(rank, 40)
    checker._base = base
    optimizers = [Optimizer() for _ in range(3)]
    sets: list[Steps] = []
    for number, which in enumerate(orders):
        if number in joins:
            sets.append(Steps({id(optimizers[each]) for each in joins[number]}))
            checker.watch(sets[-1])
        checker._start = lambda watched, at=number: checks.append((at, sets.index(watched.replicas)))  # type: ignore
        seen(checker, which, optimizers[which])
    return checks


def test_checks_of_replicas_are_the_same_when_they_are_asked_only_where_they_are_due(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "SHARE", 1e9)  # else whatever a check takes on this machine decides on the next ones
    chance = random.Random(6)
    asked = made = 0
    for _ in range(60):
        members = chance.choice([{0}, {0, 1}, {0, 1, 2}])
        base = chance.choice([0, 0, 17, 40, 399])
        changes_at = chance.randrange(50, 400)
        later = chance.choice([[0], [0, 0, 1], [0, 1], [1, 0, 2]])
        orders = [0] * changes_at + [later[n % len(later)] for n in range(400)]
        joins = {0: members, chance.randrange(1, 300): chance.choice([{0}, {1}, {0, 1}])}

        def always(checker: Checker, which: int, optimizer: Any, counts: list[int]) -> None:
            counts[which] += 1
            checker.on_optimizer(optimizer, counts[which])

        def when_due(checker: Checker, which: int, optimizer: Any, counts: list[int]) -> None:
            nonlocal asked
            counts[which] += 1
            if counts[which] >= checker.due.get(id(optimizer), 0):
                asked += 1
                checker.on_optimizer(optimizer, counts[which])

        told = []
        for way in (always, when_due):
            counts = [0, 0, 0]
            told.append(check(rank, base, orders, joins, lambda *given, way=way, counts=counts: way(*given, counts)))  # type: ignore
        assert told[0] == told[1], (members, changes_at, later, joins)
        made += len(told[0])
    assert made > 500 and asked < 60 * 600
