"""What a device's allocator says is read now and then, at next to no cost, and never where asking could do harm."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.patches.device_memory import FIRST_STEPS, DeviceMemory
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.memory_page import Word, memory_name
from guardrun.supervisor.collect.ranks.device_memory import DeviceMemoryReader
from guardrun.supervisor.engine.model.events import DeviceMemory as Reading

GIB = 1 << 30
NOW_NS = 10**12
EVERY_NS = 15 * 10**9


class Cuda:
    """As torch.cuda answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.is_there = True
        self.kept = 20
        """GiB."""
        self.fraction = 1.0

    def is_initialized(self) -> bool:
        return self.is_there

    def current_device(self) -> int:
        return 1

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        self.asked.append(f"stats {index}")
        if self.error is not None:
            raise self.error
        return {
            "allocated_bytes": {"all": {"current": self.kept * GIB, "peak": 50 * GIB}},
            "reserved_bytes": {"all": {"current": 3 * self.kept * GIB}},
            "inactive_split_bytes": {"all": {"current": 5 * GIB}},
            "segment": {"all": {"current": 400}},
            "num_alloc_retries": 3,
            "num_ooms": 1,
        }

    def mem_get_info(self, index: int) -> tuple[int, int]:
        self.asked.append(f"free {index}")
        return 10 * GIB, 80 * GIB

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"uuid-{index}")

    def get_per_process_memory_fraction(self, index: int) -> float:
        return self.fraction


def optimizer(*devices: tuple[str, int | None]) -> SimpleNamespace:
    parameters = [SimpleNamespace(device=SimpleNamespace(type=kind, index=index)) for kind, index in devices]
    return SimpleNamespace(param_groups=[{"params": parameters}])


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    return cuda


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    monkeypatch.setenv("RANK", "0")
    return Rank({"sockets": str(tmp_path)}, 0)


@pytest.fixture
def memory(rank: Rank) -> Iterator[DeviceMemory]:
    memory = DeviceMemory(rank)
    rank.memory = memory
    for _ in range(FIRST_STEPS):
        memory.on_step(None, NOW_NS)
    yield memory
    memory.close()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[DeviceMemoryReader]:
    reader = DeviceMemoryReader(tmp_path / memory_name(0, 0))
    yield reader
    reader.close()


def step(memory: DeviceMemory, *devices: tuple[str, int | None]) -> None:
    memory.on_step(optimizer(*(devices or (("cuda", 2),))), NOW_NS)


def test_what_the_allocator_says_is_read_once(memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda) -> None:
    assert reader.take_report() is None
    step(memory, ("cpu", None), ("cuda", 2))
    told = reader.take_report()
    assert told is not None and told.device != 0
    assert told == Reading(20 * GIB, 50 * GIB, 60 * GIB, 5 * GIB, 400, 3, 1, 70 * GIB, 80 * GIB, told.device)
    assert cuda.asked == ["stats 2", "free 2"], "of the device that the parameters lie on"
    assert reader.take_report() is None
    step(memory)
    assert reader.take_report() == told


def test_the_first_steps_are_left_out(rank: Rank, cuda: Cuda) -> None:
    memory = DeviceMemory(rank)
    for _ in range(FIRST_STEPS):
        step(memory)
    assert cuda.asked == [] and memory.due_ns == 0


def test_a_limit_of_the_scripts_own_counts(memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda) -> None:
    cuda.fraction = 0.5
    step(memory)
    told = reader.take_report()
    assert told is not None and told.limit == 40 * GIB


def test_parameters_on_the_host_leave_the_current_device(
    memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda
) -> None:
    step(memory, ("cpu", None))
    assert cuda.asked == ["stats 1", "free 1"] and reader.take_report() is not None


def test_a_device_that_is_not_initialised_or_holds_nothing_is_not_asked(
    memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda
) -> None:
    """Asking it for what is free would make a context."""
    cuda.is_there = False
    step(memory)
    step(memory, ("cpu", None))
    assert cuda.asked == []
    cuda.is_there, cuda.kept = True, 0
    step(memory)
    assert cuda.asked == ["stats 2"] and reader.take_report() is None


def test_nothing_is_asked_in_a_capture_or_by_another_thread(memory: DeviceMemory, rank: Rank, cuda: Cuda) -> None:
    rank.words[Field.CAPTURES] = 1
    step(memory)
    rank.words[Field.CAPTURES] = 0
    other = threading.Thread(target=step, args=(memory,))
    other.start()
    other.join()
    assert cuda.asked == [] and memory.due_ns == 0, "the next step reads"
    step(memory)
    assert cuda.asked != []


def test_what_takes_long_is_done_less_often(memory: DeviceMemory, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(cost_ns: int) -> int:
        monkeypatch.setattr("guardrun.hooks.patches.device_memory.monotonic_ns", lambda: NOW_NS + cost_ns)
        step(memory)
        return memory.due_ns - NOW_NS

    assert [read(40_000_000), read(40_000_000)] == [EVERY_NS] * 2, "the first one finds the device"
    assert read(30_000) == EVERY_NS
    assert [read(40_000_000), read(40_000_000)] == [EVERY_NS] * 2, "once or twice it may have waited for a core"
    assert read(40_000_000) == 80 * 10**9


def test_windows_that_are_shorter_are_read_more_often(rank: Rank, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardrun.hooks.patches.device_memory.monotonic_ns", lambda: NOW_NS + 20_000)
    rank.settings["memory_window_s"] = 2.0
    memory = DeviceMemory(rank)
    for _ in range(FIRST_STEPS + 1):
        step(memory)
    assert memory.due_ns == NOW_NS + 500_000_000
    memory.close()


def test_what_fails_three_times_is_off(memory: DeviceMemory, rank: Rank, cuda: Cuda) -> None:
    cuda.error = RuntimeError("does not yet support getDeviceStats")
    for attempt in range(3):
        assert rank.memory is memory, attempt
        step(memory)
    assert rank.memory is None
    failed = rank.outbox.get(0)
    assert failed is not None and "getDeviceStats" in str(failed[1]["error"])


def test_an_accelerator_that_keeps_no_numbers_is_left_alone(
    memory: DeviceMemory, rank: Rank, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(mps=SimpleNamespace()))
    step(memory, ("mps", 0))
    assert rank.memory is None and rank.outbox.get(0) is None


def test_one_that_tells_flat_numbers_and_nothing_of_its_device(
    memory: DeviceMemory, reader: DeviceMemoryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = {"allocated_bytes.all.current": 5, "allocated_bytes.all.peak": 9, "reserved_bytes.all.current": 20}
    module = SimpleNamespace(is_initialized=lambda: True, memory_stats=lambda index: stats)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=module))
    step(memory, ("npu", 0))
    assert reader.take_report() == Reading(5, 9, 20)


@pytest.mark.parametrize("word", [Word.MAGIC, Word.HEAD, Word.TAIL])
def test_a_page_that_is_torn_says_nothing(
    memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda, tmp_path: Path, word: Word
) -> None:
    step(memory)
    with (tmp_path / memory_name(0, 0)).open("r+b") as file:
        file.seek(8 * word)
        file.write(struct.pack("<q", 0))
    assert reader.take_report() is None


@pytest.mark.parametrize("value", [-2, 1 << 60, -(1 << 63), (1 << 63) - 1])
def test_a_page_that_claims_too_much_says_nothing(
    memory: DeviceMemory, reader: DeviceMemoryReader, cuda: Cuda, tmp_path: Path, value: int
) -> None:
    step(memory)
    with (tmp_path / memory_name(0, 0)).open("r+b") as file:
        file.seek(8 * Word.RESERVED)
        file.write(struct.pack("<q", value))
    assert reader.take_report() is None


def test_a_page_that_is_made_anew_is_read_anew(
    memory: DeviceMemory, reader: DeviceMemoryReader, rank: Rank, cuda: Cuda
) -> None:
    step(memory)
    assert reader.take_report() is not None
    again = DeviceMemory(rank)
    for _ in range(FIRST_STEPS + 1):
        step(again)
    assert reader.take_report() is None and reader.take_report() is not None
    again.close()


@pytest.mark.parametrize("content", [b"", b"no page", bytes(256)])
def test_what_is_no_page_says_nothing(reader: DeviceMemoryReader, tmp_path: Path, content: bytes) -> None:
    (tmp_path / memory_name(0, 0)).write_bytes(content)
    assert reader.take_report() is None
