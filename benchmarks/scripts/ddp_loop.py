"""DDP steps over gloo that compute the same amount each, timed by rank 0 in chunks.

--calibrate MS: finds the batch size with which a step takes so long, prints that as JSON, and ends.
--turns FOLDER: plays chunks on demand (turns.py).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.scripts.turns import take_turns

WIDTH = 256
SMALL, LARGE = 64, 512
"""Batch sizes between which a step's time is taken to grow evenly."""

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=SMALL)
parser.add_argument("--warmup", type=int, default=100)
parser.add_argument("--turns", type=Path)
parser.add_argument("--core", type=int, default=-1, help="where all ranks run; -1: anywhere")
parser.add_argument("--steps", type=int, default=200, help="a chunk")
parser.add_argument("--calibrate", type=float, default=0.0, metavar="MS")
arguments = parser.parse_args()


class Training:
    """Three linear layers, SGD with momentum."""

    def __init__(self) -> None:
        layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
        self.model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)

    def run(self, batch: torch.Tensor, steps: int) -> float:
        """Do so many steps; returns the seconds that each took on average."""
        dist.barrier()
        began_ns = time.monotonic_ns()
        for _ in range(steps):
            loss = self.model(batch).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return (time.monotonic_ns() - began_ns) / 1e9 / steps


def calibrate(training: Training) -> None:
    times = []
    for size in (SMALL, LARGE):
        batch = torch.randn(size, WIDTH)
        training.run(batch, 50)
        times.append(min(training.run(batch, 30) for _ in range(5)))
    slope = max((times[1] - times[0]) / (LARGE - SMALL), 1e-7)  # a busy machine can make nonsense of it
    size = SMALL + round((arguments.calibrate / 1000 - times[0]) / slope)
    if os.environ["RANK"] == "0":
        print("result:", json.dumps({"batch": min(max(size, 1), 16 * LARGE)}), flush=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training()
    if arguments.turns is None:
        calibrate(training)
    else:
        batch = torch.randn(arguments.batch, WIDTH)
        training.run(batch, arguments.warmup)
        take_turns(lambda steps: training.run(batch, steps), arguments.turns, arguments.steps, arguments.core)
    # Not by way of torch's own end: gloo's threads may abort a process whose peer has just left.
    dist.barrier()
    os._exit(0)


main()
