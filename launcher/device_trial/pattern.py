"""Does a device's memory keep what is written to it?"""

from __future__ import annotations

from typing import Any

import torch

from guardrun.launcher.device_trial.device import Device

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
