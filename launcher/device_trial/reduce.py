"""Do devices sum rightly together, those of one node or of two, and how fast? NCCL among GPUs, gloo without."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from guardrun.launcher.device_trial.device import Device, seconds_of

CUDA_WORDS, CPU_WORDS = 32 << 20, 1 << 18
"""Of float32: 128 MiB, 1 MiB."""
TIMES = 5
TIMEOUT_S = 40.0
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
        timeout=timedelta(seconds=TIMEOUT_S),
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
    took_s = seconds_of(device, lambda: dist.all_reduce(work), TIMES)
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
