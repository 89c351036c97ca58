"""How fast do bytes get to a device, back, and to its neighbour? In bytes a second."""

from __future__ import annotations

from typing import Any

import torch

from guardrun.launcher.device_trial.device import Device, seconds_of

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
