"""What a device's allocator holds, by the lines that asked for it; a stand-in keeps the history, as torch's does."""

from __future__ import annotations

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from guardrun.hooks.examine import device_snapshot as module
from guardrun.hooks.examine.device_snapshot import DeviceSnapshot, sum_up
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.board import Field
from guardrun.hooks.wire.examinations import MAX_ANSWER_BYTES

TORCH = torch.__file__.replace("__init__.py", "nn/modules/linear.py")
STACK = [
    {"filename": "CUDACachingAllocator.cpp", "line": 0, "name": "malloc"},
    {"filename": TORCH, "line": 125, "name": "forward"},
    {"filename": "/home/ada/model.py", "line": 31, "name": "forward"},
    {"filename": "/home/ada/train.py", "line": 9, "name": "<module>"},
]


def block(state: str, size: int, address: int, frames: Any = ()) -> dict[str, Any]:
    return {"size": size, "requested_size": size - 1, "state": state, "address": address, "frames": list(frames)}


SNAPSHOT: dict[str, Any] = {
    "segments": [
        {
            "device": 0, "address": 4096, "total_size": 20 << 20, "allocated_size": 7 << 20, "active_size": 7 << 20,
            "requested_size": 7 << 20, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": STACK,
            "blocks": [
                block("active_allocated", 4 << 20, 4096, STACK), block("inactive", 13 << 20, 4096 + (4 << 20)),
                block("active_allocated", 1 << 20, 4096 + (17 << 20)),
                block("active_pending_free", 2 << 20, 4096 + (18 << 20), STACK),
            ],
        },
    ],
    "device_traces": [
        [
            {"action": "alloc", "addr": 4096, "size": 4 << 20, "stream": 0, "time_us": 1, "frames": STACK},
            {"action": "alloc", "addr": 9096, "size": 3 << 20, "stream": 0, "time_us": 2, "frames": STACK[1:2]},
            {"action": "free_requested", "addr": 9096, "size": 3 << 20, "stream": 0, "time_us": 3, "frames": STACK},
            {"action": "free_completed", "addr": 9096, "size": 3 << 20, "stream": 0, "time_us": 4, "frames": []},
        ]
    ],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""},
}  # fmt: skip


class Memory:
    """Stands for torch.cuda.memory."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _record_memory_history(self, **how: Any) -> None:
        self.calls.append(how.pop("enabled"))

    def _snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        return copy.deepcopy(SNAPSHOT)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(module, "find_memory", lambda torch: memory)
    return memory


def test_figures_and_lines() -> None:
    told = sum_up(SNAPSHOT)
    assert (told["reserved_bytes"], told["allocated_bytes"], told["largest_free_bytes"]) == (
        20 << 20,
        7 << 20,
        13 << 20,
    )
    assert (told["unknown_bytes"], told["unknown_blocks"], told["entries"], told["is_full"]) == (1 << 20, 1, 4, False)
    line = {"file": "/home/ada/model.py", "line": 31, "function": "forward"}
    assert told["held"] == [{**line, "bytes": 6 << 20, "blocks": 2}]
    own = {"file": TORCH[:120], "line": 125, "function": "forward", "bytes": 3 << 20, "blocks": 1}
    assert told["asked"] == [{**line, "bytes": 4 << 20, "blocks": 1}, own]


def test_lines_without_end_fit_into_the_answer() -> None:
    frames = [[{"filename": "\u0416" * 900 + str(n), "line": n, "name": "\u0416" * 900}] for n in range(300)]
    blocks = [block("active_allocated", 512, 512 * n, stack) for n, stack in enumerate(frames)]
    trace = [{"action": "alloc", "size": 512, "frames": stack} for stack in frames]
    told = sum_up({"segments": [{"total_size": 512 * 300, "blocks": blocks}], "device_traces": [trace]})
    assert len(json.dumps(told)) < MAX_ANSWER_BYTES and told["held_left_out"] == 285


def test_a_history_is_kept_for_a_while_and_read_by_torch_s_viewer(rank: Rank, memory: Memory, tmp_path: Any) -> None:
    rank.sockets = str(tmp_path)
    one = DeviceSnapshot(rank, {"seconds": 5})
    assert memory.calls == ["all"] and one.on_beat(one.ends_ns - 1) is None
    rank.words[Field.CAPTURES] = 1
    assert one.on_beat(one.ends_ns) is None and memory.calls == ["all"]
    with pytest.raises(ValueError, match="captures a graph all the time"):
        one.on_beat(one.ends_ns + 11_000_000_000)
    rank.words[Field.CAPTURES] = 0
    told = one.on_beat(one.ends_ns)
    assert told is not None and told["held"] and not told["is_scripts"]
    one.end()
    assert memory.calls == ["all", "snapshot", None]
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    loaded = pickle.loads(file.read_bytes())
    assert loaded == SNAPSHOT and "total_reserved" in _memory_viz.segsum(loaded)
    assert "4 entries" in _memory_viz.trace(loaded)


def test_a_script_that_keeps_a_history_has_it_left(
    rank: Rank, memory: Memory, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.sockets = str(tmp_path)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    one = DeviceSnapshot(rank, {"seconds": 1})
    told = one.on_beat(one.ends_ns)
    one.end()
    assert told is not None and told["is_scripts"] and memory.calls == ["snapshot"]


@pytest.mark.parametrize("seconds", [0, 0.5, 601, float("nan"), None])
def test_what_is_refused(rank: Rank, seconds: float | None) -> None:
    with pytest.raises(ValueError, match="seconds can be recorded"):
        DeviceSnapshot(rank, {"seconds": seconds})


def test_a_rank_without_such_a_device(rank: Rank) -> None:
    with pytest.raises(ValueError, match="uses no device whose allocator keeps a history"):
        DeviceSnapshot(rank, {"seconds": 1})
    assert (
        module.find_memory(SimpleNamespace(cuda=SimpleNamespace(memory=Memory(), is_initialized=lambda: False))) is None
    )
