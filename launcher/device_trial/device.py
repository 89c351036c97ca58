"""A device under trial, a GPU or one core of the CPU: does it multiply rightly, keep what is written, copy fast?"""

from __future__ import annotations

import ctypes
import os
import time
from hashlib import sha256
from typing import Any

import psutil
import torch


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
TIMES = 5


def try_copies(device: Device, devices: int) -> dict[str, Any]:
    """devices: how many there are, for the neighbour."""
    if not device.is_cuda:
        source, target = (torch.ones(CPU_BYTES, dtype=torch.uint8) for _ in range(2))
        return {"memory": CPU_BYTES / seconds_of(device, lambda: target.copy_(source), TIMES)}
    there = torch.ones(CUDA_BYTES, dtype=torch.uint8, device=device.torch)
    here = torch.ones(CUDA_BYTES, dtype=torch.uint8, pin_memory=True)
    speeds = {
        "to_device": CUDA_BYTES / seconds_of(device, lambda: there.copy_(here, non_blocking=True), TIMES),
        "from_device": CUDA_BYTES / seconds_of(device, lambda: here.copy_(there, non_blocking=True), TIMES),
    }
    if devices > 1:
        neighbour = torch.device("cuda", (device.index + 1) % devices)
        next_door = torch.ones(CUDA_BYTES, dtype=torch.uint8, device=neighbour)

        def copy() -> None:
            next_door.copy_(there)
            torch.cuda.synchronize(neighbour)

        speeds["to_neighbour"] = CUDA_BYTES / seconds_of(device, copy, TIMES)
    return speeds
