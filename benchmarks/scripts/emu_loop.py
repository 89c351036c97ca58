"""Steps on the emulated device with a reduction a layer, timed by rank 0 in chunks.

The host computes for each layer and reduces its gradient, as a job that is bound by its host does: what a supervisor
costs the host shows in full. --turns FOLDER: plays chunks on demand (turns.py).
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.scripts.turns import take_turns
from tests.emu import device as emu

LAYERS = 5
"""Each with one reduction a step."""
SIZE = 160
"""Of a layer's matrix: with it, about 500 reductions a second."""
SYNC_EVERY = 10
"""Steps from one wait for the device to the next, as for a loss that is printed."""

parser = argparse.ArgumentParser()
parser.add_argument("--turns", type=Path, required=True)
parser.add_argument("--core", type=int, default=-1, help="where all ranks run; -1: anywhere")
parser.add_argument("--steps", type=int, default=100, help="a chunk")
parser.add_argument("--warmup", type=int, default=50)
arguments = parser.parse_args()


class Training:
    """Layers on the host, gradients on the device."""

    def __init__(self) -> None:
        self.layers = [torch.rand(SIZE, SIZE) for _ in range(LAYERS)]
        self.gradients = [torch.rand(SIZE, device="emu") for _ in range(LAYERS)]

    def run(self, steps: int) -> float:
        """Do so many steps; returns the seconds that each took on average."""
        dist.barrier()
        emu.synchronize()
        began_ns = time.monotonic_ns()
        for number in range(steps):
            for layer, gradient in zip(self.layers, self.gradients, strict=True):
                torch.mm(layer, layer)
                dist.all_reduce(gradient, op=dist.ReduceOp.MAX)
            if number % SYNC_EVERY == 0:
                emu.synchronize()
        emu.synchronize()
        return (time.monotonic_ns() - began_ns) / 1e9 / steps


def main() -> None:
    torch.set_num_threads(1)
    emu.use()
    dist.init_process_group("cpu:gloo,emu:nccl")
    training = Training()
    training.run(arguments.warmup)
    take_turns(training.run, arguments.turns, arguments.steps, arguments.core)
    dist.barrier()
    os._exit(0)


main()
