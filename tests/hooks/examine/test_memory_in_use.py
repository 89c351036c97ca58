"""Memory in use is read of the device where a rank has some there, else of the process; in captures nothing is."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from guardrun.hooks.examine.memory_in_use import DeviceMemory, ResidentMemory, find_memory
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field

MIB = 1 << 20


class Device:
    """torch.cuda, as far as it is asked."""

    def __init__(self, reserved: int, is_initialized: bool = True) -> None:
        self.reserved, self.is_there, self.asked = reserved, is_initialized, 0

    def is_initialized(self) -> bool:
        return self.is_there

    def current_device(self) -> int:
        return 3

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        self.asked += 1
        assert index == 3
        sizes = {"all": {"current": self.reserved}}
        return {"reserved_bytes": sizes, "allocated_bytes": {"all": {"current": 5 * MIB}}}


OPTIMIZER = SimpleNamespace(param_groups=[{"params": [SimpleNamespace(device=torch.device("cuda", 3))]}])


def test_of_the_device_that_parameters_lie_on(rank: Rank) -> None:
    device = Device(8 * MIB)
    memory = find_memory(SimpleNamespace(cuda=device), rank, OPTIMIZER)
    assert isinstance(memory, DeviceMemory) and memory.read() == 5 * MIB
    rank.words[Field.CAPTURES] = 1
    asked = device.asked
    assert memory.read() == -1 and device.asked == asked
    memory.close()
    other = find_memory(SimpleNamespace(cuda=device), rank, OPTIMIZER)
    assert other.where == "host" and device.asked == asked
    other.close()


@pytest.mark.parametrize("device", [Device(0), Device(8 * MIB, is_initialized=False)])
def test_of_the_process_where_no_device_is_used(rank: Rank, device: Device) -> None:
    memory = find_memory(SimpleNamespace(cuda=device), rank, OPTIMIZER)
    assert isinstance(memory, ResidentMemory)
    before = memory.read()
    kept = bytearray(os.urandom(64 * MIB))
    assert memory.read() - before > 32 * MIB and kept
    memory.close()
    memory.close()
    assert memory.read() == -1


def test_a_descriptor_that_is_another_files_now_is_not_closed() -> None:
    memory = ResidentMemory()
    fd = memory._fd
    read, write = os.pipe()
    os.dup2(read, fd)
    try:
        assert memory.read() == -1
        memory.close()
        os.fstat(fd)
    finally:
        for each in (fd, read, write):
            os.close(each)
