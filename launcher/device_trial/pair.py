"""Do the devices of two nodes sum rightly together, and how fast? NCCL among GPUs, gloo without."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from guardrun.launcher.device_trial.device import Device
from guardrun.launcher.device_trial.reduce import sum_together

TIMEOUT_S = 25.0
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
        timeout = timedelta(seconds=TIMEOUT_S)
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
