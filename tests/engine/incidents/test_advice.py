"""Advice by what was seen; the allocator's summary as data; no myth."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.engine.failures.cuda_memory import parse_memory
from guardrun.supervisor.engine.incidents import advice as module
from guardrun.supervisor.engine.incidents.advice import ADVICE, advice_for, data_words

GIB = 1 << 30
READ_BY = {
    "NCCL_DEBUG": "NCCL, as a communicator is made (nccl src/debug.cc)",
    "PYTORCH_CUDA_ALLOC_CONF": "c10/core/AllocatorConfig.cpp; PYTORCH_ALLOC_CONF's older name, which all versions read",
    "CUDA_LAUNCH_BLOCKING": "the CUDA driver (CUDA programming guide, environment variables)",
    "CUDA_VISIBLE_DEVICES": "the CUDA driver (the same)",
    "TMPDIR": "Python's tempfile",
    "LOCAL_RANK": "scripts; torchrun and guardrun set it",
    "GUARDRUN_RESUME_FROM": "scripts; guardrun sets it",
}
"""Environment variables that advice may name, and who reads them."""


def oom(*, tried: str = "2.00 GiB", free: str = "1.00 GiB", own: str = "78.00 GiB", used: str = "77.00 GiB", unused: str = "512.00 MiB", others: str = "") -> str:  # noqa: E501  # fmt: skip
    """By hand after c10/cuda/CUDACachingAllocator.cpp, as torch 2.13 words it."""
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 3 has a total capacity of 80.00 GiB of which {free} is "
        f"free. {others}Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory "
        f"{used} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management"
    )


def advice_of(message: str) -> str:
    return advice_for("cuda_oom", {"memory": parse_memory(message)})


def test_the_summary_as_data() -> None:
    assert parse_memory(oom(others="Process 4242 has 512.00 MiB memory in use. ")) == {
        "tried_bytes": 2 * GIB,
        "total_bytes": 80 * GIB,
        "free_bytes": GIB,
        "process_bytes": 78 * GIB,
        "allocated_bytes": 77 * GIB,
        "reserved_unallocated_bytes": GIB // 2,
        "gpu": 3,
        "other_processes": [{"pid": 4242, "bytes": GIB // 2}],
    }


@pytest.mark.parametrize(
    "message", ["", "CUDA error: out of memory", "Tried to allocate ... GiB", "Tried to allocate 1.2.3 GiB"]
)
def test_texts_without_a_summary(message: str) -> None:
    memory = parse_memory(message)
    assert memory is None or memory["tried_bytes"] == 0
    assert advice_for("cuda_oom", {"memory": memory})


def test_memory_that_is_really_used() -> None:
    assert "77 GB are really in use" in advice_of(oom()) and "batch size" in advice_of(oom())


def test_fragmentation() -> None:
    text = advice_of(oom(used="60.00 GiB", unused="17.00 GiB"))
    assert "expandable_segments:True" in text and "17 GB" in text
    assert "expandable_segments" not in advice_of(oom(tried="20.00 GiB", used="60.00 GiB", unused="17.00 GiB"))


def test_strangers_on_the_device() -> None:
    text = advice_of(oom(own="48.00 GiB", used="47.00 GiB", others="Process 99 has 31.00 GiB memory in use. "))
    assert "Others hold 31 GB" in text and "pids 99" in text
    unseen = advice_of(oom(own="48.00 GiB", used="47.00 GiB"))
    assert "Others hold 31 GB of this device:" in unseen, "another container's, which nothing lists"


def test_a_container_whose_only_process_is_the_rank_itself_has_no_stranger() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 14.00 MiB. GPU 0 has a total capacity of 22.30 GiB of which 4.69 MiB is "
        "free. Process 860120 has 22.29 GiB memory in use. Of the allocated memory 21.92 GiB is allocated by PyTorch, "
        "with 22.00 MiB allocated in private pools (e.g., CUDA Graphs), and 16.47 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert "Others" not in advice_of(text) and "21.9 GB are really in use" in advice_of(text)


def test_a_limit_of_the_scripts_own_and_a_tensor_that_fits_nowhere() -> None:
    limited = oom(free="40.00 GiB", own="39.00 GiB").replace("Of the allocated", "40.00 GiB allowed; Of the allocated")
    assert "set_per_process_memory_fraction" in advice_of(limited)
    assert "wrong shape" in advice_of(oom(tried="512.00 GiB"))


@pytest.mark.parametrize(
    ("cause", "evidence", "words"),
    [
        ("disk_full", {"disk": {"folder": "/dev/shm", "free_bytes": 0}}, "--shm-size"),
        ("disk_full", {"disk": {"folder": "/out", "free_bytes": 0}}, "Free space in /out"),
        ("disk_full", {"disk": {"folder": "/tmp"}}, "TMPDIR"),
        ("disk_full", {"hint": "quota", "disk": {"folder": "/home"}}, "quota is used up"),
        ("disk_full", {}, "Free space"),
        ("bus_error", {"disk_free_bytes": {"/dev/shm": 0}}, "/dev/shm is full"),
        ("bus_error", {"disk_free_bytes": {"/dev/shm": 1 << 34}}, "Often a full /dev/shm"),
        ("bus_error", {"hint": "worker_bus"}, "Workers hand their batches over in /dev/shm"),
        ("exception", {"hint": "device_assert"}, "no fault of the device"),
        ("exception", {"hint": "illegal_access"}, "CUDA_LAUNCH_BLOCKING=1"),
        ("abort", {"hint": "illegal_access"}, "CUDA_LAUNCH_BLOCKING=1"),
        ("host_oom", {"hint": "worker"}, "fewer workers"),
        ("killed", {"hint": "worker"}, "A DataLoader worker was killed"),
        ("killed", {}, "not guardrun"),
        ("nccl_error", {"hint": "watchdog"}, "waited for one that did not come"),
        ("gpu_lost", {"hint": "none_visible"}, "CUDA_VISIBLE_DEVICES"),
        ("gpu_lost", {"hint": "reading"}, "drain the node"),
        ("checkpoint_corrupt", {"checkpoint": "/out/ckpt_40.pt"}, "/out/ckpt_40.pt can't be read"),
        ("checkpoint_corrupt", {"checkpoint": "/o/c.pt", "loaded_again": True}, "whatever guardrun chooses"),
        ("no_such_cause", {}, ""),
    ],
)
def test_advice_fits_what_was_seen(cause: str, evidence: dict[str, Any], words: str) -> None:
    assert words in advice_for(cause, evidence)


def test_what_to_skip() -> None:
    stop = {"batch": 61, "epoch": 0, "indices": [120, 121, 122, 123, 200]}
    assert data_words(stop) == "batch 61 since the attempt's start in epoch 0 (samples 120-123,200 of the data set)"
    text = advice_for("poison_step", {"stops": [stop, {**stop, "batch": 21}]})
    assert "skip batch 21" in text and "120-123,200" in text
    other = advice_for("poison_step", {"stops": [stop, {**stop, "indices": [7]}]})
    assert "other data each time" in other
    assert advice_for("poison_step", {"stops": [{"step": 3}]}) == ADVICE["poison_step"]
    assert len(data_words({"batch": 1, "indices": list(range(0, 2000, 2))})) < 200


def test_no_myth() -> None:
    """Every environment variable that advice names is one that something reads."""
    tree = ast.parse(Path(module.__file__).read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    words = " ".join(text for text in texts if text != module.__doc__)
    assert "NCCL_DEBUG" in words
    assert set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", words)) <= set(READ_BY)
    for line in re.findall(r"[^.]*NCCL_DEBUG=[^.]*\.", " ".join(ADVICE.values())):
        assert "before the next start" in line
