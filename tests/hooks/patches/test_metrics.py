"""Loss and gradient norm of each step, as a rank that trains computes them; and no bit of training is another."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from guardrun.hooks.patches import device_values
from guardrun.hooks.patches.device_values import DeviceValues
from guardrun.hooks.patches.metrics import Metrics
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.messages import HookFailed, Noted
from guardrun.hooks.wire.metrics_page import Flag, metrics_name
from guardrun.supervisor.collect.ranks.metrics import MetricsReader, StepRecord
from tests.hooks.bed import Bed, finish
from tests.hooks.metric_records import read_page
from tests.support.keep_group import KEEP_GROUP
from tests.support.ports import free_ports

SCRIPT = str(Path(__file__).parents[1] / "ranks" / "metrics.py")
SHARDED = str(Path(SCRIPT).with_name("sharded_metrics.py"))


def check(way: str, records: list[StepRecord], expected: list[list[float | None]]) -> int:
    """Whether they tell what was computed. Returns how many steps were left out."""
    skipped = 0
    for number, (record, (loss, norm)) in enumerate(zip(records, expected, strict=True), 1):
        assert loss is not None and record.loss == pytest.approx(loss, nan_ok=True), (way, number)
        assert record.flags & Flag.LOSS and bool(record.flags & Flag.GRAD_NORM) == (norm is not None), way
        assert norm is None or record.grad_norm == pytest.approx(norm, nan_ok=True), (way, number)
        assert bool(record.flags & Flag.LOSS_NAN) == math.isnan(loss)
        assert bool(record.flags & Flag.LOSS_INFINITE) == math.isinf(loss)
        is_skipped = way.startswith("amp") and norm is not None and not math.isfinite(norm)
        assert bool(record.flags & Flag.SKIPPED) == is_skipped, (way, number)
        skipped += is_skipped
    return skipped


def test_each_step_has_its_loss_and_norm_and_training_is_the_same(bed: Bed, tmp_path: Path) -> None:
    """What is no step's loss (`others`) has no record: other threads', several numbers at once, given gradients."""
    bed.make_board()
    done = finish(bed.start([SCRIPT, str(tmp_path / "ours")]))
    assert done.returncode == 0, done
    assert bed.hear_all(HookFailed) == [] and bed.hear_all(Noted) == []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GUARDRUN")}
    command = [sys.executable, SCRIPT, str(tmp_path / "theirs")]
    alone = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes() != b""
    assert done.stdout == alone.stdout.decode()

    records, unread = read_page(bed.sockets)
    assert unread == 0
    told: dict[str, list[list[float | None]]] = json.loads(done.stdout)
    assert [record.step for record in records[:12]] == list(range(1, 13))
    skipped = {}
    for way, expected in told.items():
        skipped[way] = check(way, records[: len(expected)], expected)
        del records[: len(expected)]
    assert records == []
    assert 0 < skipped["amp"] < 12 and skipped["amp fused"] == skipped["amp"]

    reader = MetricsReader(bed.sockets / metrics_name(0, 0))
    reader.read(base=100)
    metrics = reader.take_report()
    reader.close()
    assert metrics is not None
    assert (metrics.learning_rate, metrics.skipped, metrics.first) == (1e-2, 2 * skipped["amp"], 101)


def test_sharded_training_tells_the_same() -> None:
    """DDP, FSDP, FSDP2 and tensor parallelism: the loss, and the norm of all of the gradients."""
    [port] = free_ports(1)
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with Bed(world_size=2) as bed:
        for rank in range(2):
            bed.make_board(rank)
        ranks = [bed.start([KEEP_GROUP, SHARDED], rank=rank, more=more) for rank in range(2)]
        done = [finish(rank) for rank in ranks]
        assert [rank.returncode for rank in done] == [0, 0], done
        assert bed.hear_all(HookFailed) == []
        pages = [read_page(bed.sockets, rank=rank)[0] for rank in range(2)]
    for records, ended in zip(pages, done, strict=True):
        expected = [step for kind in json.loads(ended.stdout) for step in kind]
        assert [[record.loss, record.grad_norm] for record in records] == [pytest.approx(step) for step in expected]


class Device(NamedTuple):
    """As torch.device."""

    type: str
    index: int = 0


class There:
    """A number on a device."""

    is_cpu = False
    device = Device("fake")

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False


def test_steps_are_left_out_where_copying_would_cost_more_than_its_share(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 0
    values = DeviceValues(rank)

    def copy(*_: object) -> str:
        nonlocal now_ns
        now_ns += 20_000
        return "a copy"

    monkeypatch.setattr(device_values, "monotonic_ns", lambda: now_ns)
    monkeypatch.setattr(values, "_start", copy)
    monkeypatch.setattr(values, "_kinds", (There,))

    def count(steps: int, step_ns: int) -> int:
        nonlocal now_ns
        read = 0
        for _ in range(steps):
            now_ns += step_ns
            read += values.read(There()) is not None
            values.on_step()
        return read

    assert count(100, 20_000_000) == 100, "a thousandth of the step"
    before = values.unread
    read = count(1000, 1_000_000)
    assert 85 <= read <= 110 and values.unread - before == 1000 - read, "a fiftieth, for a share of a five hundredth"
    assert count(1000, 20_000_000) >= 900


class Late:
    """An event, and a slot of pinned memory, of a device that is behind."""

    def __init__(self) -> None:
        self.value = 0.0
        self.is_done = False

    def copy_(self, tensor: Late, non_blocking: bool) -> None:
        assert non_blocking
        self.value, self.is_done = tensor.value, False

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.is_done

    def item(self) -> float:
        return self.value

    def detach(self) -> Late:
        return self

    def dim(self) -> int:
        return 0


TORCH = SimpleNamespace(accelerator=SimpleNamespace(current_stream=lambda device: device))


class LateThere(There, Late):
    """A number of that device."""

    dtype = "float32"

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.device = Device("cuda", index)


def test_what_is_behind_is_asked_of_the_numbers_own_device(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that says `.to("cuda:1")` alone leaves the current device at 0: an event there would be done at once."""
    devices = [LateThere(index).device for index in (0, 1)]
    made = []

    def make(_: object, device: object, __: object) -> list[tuple[Late, Late]]:
        made.append(device)
        return [(place, place) for place in (Late(), Late())]

    accelerator = SimpleNamespace(current_stream=lambda device: f"stream of {device.index}")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(accelerator=accelerator))
    monkeypatch.setattr(device_values, "make_places", make)
    values = DeviceValues(rank)
    monkeypatch.setattr(values, "_kinds", (LateThere,))
    for device in (devices[1], devices[0], devices[1]):
        number = LateThere()
        number.device = device
        copy = values.read(number)
        assert isinstance(copy, device_values.Copy)
        assert copy._place[1].stream == f"stream of {device.index}"
    assert made == [devices[1], devices[0]], "an event is of one device for good"


def test_no_number_takes_the_place_of_one_that_is_not_read(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step with more numbers than there are places for, while the device is behind, is left out whole."""
    rank.sockets = str(tmp_path)
    places = [Late() for _ in range(3)]
    monkeypatch.setattr(device_values, "make_places", lambda *_: [(place, place) for place in places])
    monkeypatch.setattr(device_values, "SHARE", 1e9)
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    metrics = Metrics(rank)
    monkeypatch.setattr(metrics._devices, "_kinds", (LateThere,))
    optimizer = Optimizer()

    def step(*losses: float) -> None:
        for loss in losses:
            number = LateThere()
            number.value = loss
            metrics.see_loss(number)
        rank.words[Field.STEP] += 1
        metrics.on_optimizer(optimizer)

    step(1.0, 2.0)
    step(10.0, 20.0)
    step(100.0)
    assert not (tmp_path / metrics_name(0, 0)).exists(), "nothing is there yet"
    for losses in ((1000.0,), (5.0, 6.0, 7.0), ()):
        for place in places:
            place.is_done = True
        step()
        step(*losses)
    records, unread = read_page(tmp_path)
    metrics.close()
    assert [(record.step, record.loss) for record in records] == [(1, 3.0), (3, 100.0), (5, 1000.0), (7, 18.0)]
    assert unread == 1


class Optimizer:
    """As far as it is looked at."""

    param_groups: list[dict[str, float]] = [{"lr": 0.1}]  # noqa: RUF012


def test_nothing_on_a_device_is_asked_for_while_a_graph_is_captured(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = DeviceValues(rank)
    monkeypatch.setattr(values, "_start", lambda *_: pytest.fail("it was asked"))
    monkeypatch.setattr(values, "_kinds", (There,))
    rank.words[Field.CAPTURES] = 1
    assert values.read(There()) is None


def test_a_script_that_trains_without_a_loss_makes_no_page(bed: Bed) -> None:
    bed.make_board()
    done = finish(bed.start(["-c", "import torch; torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1).step()"]))
    assert done.returncode == 0, done
    assert not (bed.sockets / metrics_name(0, 0)).exists()
