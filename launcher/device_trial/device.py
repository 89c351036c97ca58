"""A device under trial, a GPU or one core of the CPU: alone, and summing with others.

Alone: does it multiply rightly, keep what is written, copy fast? Together, on one node or on two: do they sum rightly,
and how fast? NCCL among GPUs, gloo without.
"""

from __future__ import annotations

import ctypes
import os
import time
from datetime import timedelta
from hashlib import sha256
from typing import Any

import psutil
import torch
import torch.distributed as dist

from guardrun.hooks.patches.devices import read_identity


class Device:
    """`cuda:3`, or `cpu:5`: the process is then bound to that core, with one thread."""

    def __init__(self, name: str) -> None:
        kind, _, number = name.partition(":")
        self.is_cuda = kind == "cuda"
        self.index = int(number)
        if self.is_cuda:
            torch.cuda.set_device(self.index)
            self.torch = torch.device("cuda", self.index)
            # Neighbours are compared bit by bit: no rounding that depends on more than the device.
            torch.backends.cuda.matmul.allow_tf32 = False
        else:
            os.sched_setaffinity(0, {self.index})
            torch.set_num_threads(1)
            self.torch = torch.device("cpu")

    def identity(self) -> dict[str, str]:
        """`uuid` and `bus` of a GPU, as torch tells them: its number is this process's own. Empty for a core."""
        if not self.is_cuda:
            return {}
        uuid, bus = read_identity(torch.cuda.get_device_properties(self.index))
        return {"uuid": uuid, "bus": bus}

    def synchronize(self) -> None:
        """Wait until the GPU has finished what was launched; at once on a CPU, which runs nothing later."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch)

    def free_bytes(self) -> int:
        """Memory that is left on it."""
        if self.is_cuda:
            return int(torch.cuda.mem_get_info(self.torch)[0])
        return int(psutil.virtual_memory().available)


def digest(tensor: torch.Tensor) -> str:
    """Names the bits of a tensor. Without numpy, which need not be installed."""
    here = tensor.detach().cpu().contiguous()
    return sha256(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())).hexdigest()[:16]


def seconds_of(device: Device, work: object, times: int) -> float:
    """The shortest of some runs of a callable, on the device's own time: what comes between only makes it longer."""
    assert callable(work)
    best_s = float("inf")
    for _ in range(times):
        device.synchronize()
        began_s = time.perf_counter()
        work()
        device.synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s


# Product ------------------------------------------------------------------------------------------------------------
# Does a device multiply rightly? Silent corruption shows in products that are known, and in neighbours that differ.
#
# Two kinds, turn by turn. Of small whole numbers: every partial sum fits a float32 exactly, so that the result is known
# whatever the order of summation, and is checked by Freivalds' way, (A B) x = A (B x), in whole numbers on the CPU. Of
# normally distributed numbers: their bits depend on the order, which is the same each time, and on devices of one
# model.

CUDA_SIZE, CPU_SIZE = 4096, 768
CUDA_S, CPU_S = 5.0, 1.0
CUDA_REPEATS, CPU_REPEATS = 20, 1
"""A GPU is done in milliseconds; making the numbers takes longer."""
LEAST_TURNS = 2
MOST_TURNS = 500
LARGEST = 8
"""8 · 8 · 4096 = 2^18 is far below 2^24, up to which float32 holds every whole number."""


def try_product(device: Device) -> dict[str, Any]:
    """Multiply for some seconds: turns, wrong results, and a digest of each turn's bits."""
    size, limit_s = (CUDA_SIZE, CUDA_S) if device.is_cuda else (CPU_SIZE, CPU_S)
    began_s = time.monotonic()
    wrong, unsteady = 0, 0
    digests: list[str] = []
    while len(digests) < LEAST_TURNS or (time.monotonic() - began_s < limit_s and len(digests) < MOST_TURNS):
        seed = len(digests)
        wrong += not _is_exact(device, size, seed)
        product, differing = _normal_product(device, size, seed)
        digests.append(digest(product))
        unsteady += differing
    return {"turns": len(digests), "wrong": wrong, "unsteady": unsteady, "digests": digests, "size": size}


def _is_exact(device: Device, size: int, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.randint(-LARGEST, LARGEST + 1, (size, size), generator=generator, dtype=torch.int64) for _ in range(2)
    )
    product = left.to(device.torch, torch.float32) @ right.to(device.torch, torch.float32)
    probe = torch.randint(-LARGEST, LARGEST + 1, (size,), generator=generator, dtype=torch.int64)
    return bool(torch.equal(product.cpu().to(torch.int64) @ probe, left @ (right @ probe)))


def _normal_product(device: Device, size: int, seed: int) -> tuple[torch.Tensor, int]:
    """A product, and in how many repetitions of it the device came to another."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(size, size, generator=generator).to(device.torch) for _ in range(2))
    product = left @ right
    times = CUDA_REPEATS if device.is_cuda else CPU_REPEATS
    return product, sum(not torch.equal(left @ right, product) for _ in range(times))


# Pattern ------------------------------------------------------------------------------------------------------------
# Does a device's memory keep what is written to it?

CHUNK_BYTES = 64 << 20
CUDA_SHARE, CUDA_MOST_BYTES = 0.5, 16 << 30
CPU_SHARE, CPU_MOST_BYTES = 0.05, 128 << 20
PATTERNS = (0x5555555555555555, -0x5555555555555556, 0x00FF00FF00FF00FF)
"""Neighbouring bits differ, the same turned round (0xAA…), and bytes that differ."""
_ODD = 0x9E3779B97F4A7C1
"""Times the place: every word its own, so that an address line that is stuck shows."""


def try_pattern(device: Device) -> dict[str, Any]:
    """Fill memory, all of it before any is read back. Wrong words, and how many bytes were tried."""
    share, most = (CUDA_SHARE, CUDA_MOST_BYTES) if device.is_cuda else (CPU_SHARE, CPU_MOST_BYTES)
    wanted = min(most, int(device.free_bytes() * share))
    words = CHUNK_BYTES // 8
    chunks = [torch.empty(words, dtype=torch.int64, device=device.torch) for _ in range(max(1, wanted // CHUNK_BYTES))]
    wrong = 0
    for pattern in PATTERNS:
        for chunk in chunks:
            chunk.fill_(pattern)
        wrong += sum(int((chunk != pattern).sum()) for chunk in chunks)
    places = torch.arange(words, dtype=torch.int64, device=device.torch) * _ODD
    for number, chunk in enumerate(chunks):
        torch.add(places, number, out=chunk)
    wrong += sum(int((chunk - number != places).sum()) for number, chunk in enumerate(chunks))
    return {"wrong": wrong, "bytes": len(chunks) * CHUNK_BYTES}


# Copies -------------------------------------------------------------------------------------------------------------
# How fast do bytes get to a device, back, and to its neighbour? In bytes a second.

CUDA_BYTES, CPU_BYTES = 256 << 20, 64 << 20
COPIES = 5


def try_copies(device: Device, devices: int) -> dict[str, Any]:
    """devices: how many there are, for the neighbour."""
    if not device.is_cuda:
        source, target = (torch.ones(CPU_BYTES, dtype=torch.uint8) for _ in range(2))
        return {"memory": CPU_BYTES / seconds_of(device, lambda: target.copy_(source), COPIES)}
    there = torch.ones(CUDA_BYTES, dtype=torch.uint8, device=device.torch)
    here = torch.ones(CUDA_BYTES, dtype=torch.uint8, pin_memory=True)
    speeds = {
        "to_device": CUDA_BYTES / seconds_of(device, lambda: there.copy_(here, non_blocking=True), COPIES),
        "from_device": CUDA_BYTES / seconds_of(device, lambda: here.copy_(there, non_blocking=True), COPIES),
    }
    if devices > 1:
        neighbour = torch.device("cuda", (device.index + 1) % devices)
        next_door = torch.ones(CUDA_BYTES, dtype=torch.uint8, device=neighbour)

        def copy() -> None:
            next_door.copy_(there)
            torch.cuda.synchronize(neighbour)

        speeds["to_neighbour"] = CUDA_BYTES / seconds_of(device, copy, COPIES)
    return speeds


# Sum ----------------------------------------------------------------------------------------------------------------

CUDA_WORDS, CPU_WORDS = 32 << 20, 1 << 18
"""Of float32: 128 MiB, 1 MiB."""
SUMS = 5
SUM_TIMEOUT_S = 40.0
PERIOD = 17


def try_reduce(device: Device, store: str, rank: int, ranks: int) -> dict[str, Any]:
    """All-reduce among all. store: a file that they meet in. Right sums, and the bus bandwidth in bytes a second."""
    if not device.is_cuda:
        # On loopback: what gloo would choose, the address of the host's own name, need not be there.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if device.is_cuda else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=SUM_TIMEOUT_S),
    )
    try:
        sums = sum_together(device, rank, ranks)
        # What each link has carried: "Performance reported by NCCL tests", bus bandwidth.
        moved = 2 * (ranks - 1) / ranks * sums["bytes"]
        return {"wrong": sums["wrong"], "bus": moved / sums["took"]}
    finally:
        dist.destroy_process_group()


def sum_together(device: Device, rank: int, ranks: int) -> dict[str, Any]:
    """Within a process group: how many sums were wrong, what the quickest took in seconds, of how many bytes."""
    words = CUDA_WORDS if device.is_cuda else CPU_WORDS
    base = torch.arange(words, dtype=torch.int64, device=device.torch) % PERIOD
    tensor = (base + rank).to(torch.float32)
    dist.all_reduce(tensor)
    # Whole numbers far below 2^24: exact, whatever the order.
    wrong = int((tensor.to(torch.int64) != base * ranks + ranks * (ranks - 1) // 2).sum())
    work = torch.ones(words, dtype=torch.float32, device=device.torch)
    took_s = seconds_of(device, lambda: dist.all_reduce(work), SUMS)
    return {"wrong": wrong, "took": took_s, "bytes": words * 4}


# Pair ---------------------------------------------------------------------------------------------------------------
# Do the devices of two nodes sum rightly together, and how fast? NCCL among GPUs, gloo without.

PAIR_TIMEOUT_S = 25.0
"""Of everything: the store, the process group, each sum."""


class Pairing:
    """One device's part; again and again, with other nodes."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._store: Any = None

    def serve(self) -> dict[str, Any]:
        """Serve a store that others can join, for as long as this process lives: its port."""
        if self._store is None:
            self._store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        return {"port": self._store.port}

    def add(self, address: str, port: str, prefix: str, rank: str, ranks: str) -> dict[str, Any]:
        """All-reduce among the devices of two nodes. prefix: this pair's alone."""
        timeout = timedelta(seconds=PAIR_TIMEOUT_S)
        store = dist.TCPStore(address, int(port), is_master=False, timeout=timeout, wait_for_workers=False)
        dist.init_process_group(
            "nccl" if self._device.is_cuda else "gloo",
            store=dist.PrefixStore(prefix, store),
            rank=int(rank),
            world_size=int(ranks),
            timeout=timeout,
        )
        try:
            return sum_together(self._device, int(rank), int(ranks))
        finally:
            dist.destroy_process_group()
