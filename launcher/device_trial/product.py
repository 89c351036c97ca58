"""Does a device multiply rightly? Silent corruption shows in products that are known, and in neighbours that differ.

Two kinds, turn by turn. Of small whole numbers: every partial sum fits a float32 exactly, so that the result is known
whatever the order of summation, and is checked by Freivalds' way, (A B) x = A (B x), in whole numbers on the CPU. Of
normally distributed numbers: their bits depend on the order, which is the same each time, and on devices of one model.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from guardrun.launcher.device_trial.device import Device, digest

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
