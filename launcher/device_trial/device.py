"""A device under trial: a GPU, or one core of the CPU."""

from __future__ import annotations

import ctypes
import os
import time
from hashlib import sha256

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
