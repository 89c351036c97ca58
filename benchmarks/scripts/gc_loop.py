"""DDP steps over gloo with many objects alive and cyclic garbage in every step; rank 0 prints its step times as JSON.

The garbage is what training loops leave: autograd contexts, samples and closures that refer to each other. How much
of it there is differs from rank to rank and step to step, as samples do, so that ranks collect at steps of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--alive", type=int, default=500_000, help="objects that stay: an index, a vocabulary, a data set")
parser.add_argument("--garbage", type=int, default=300, help="cycles a step, on average")
parser.add_argument("--warmup", type=int, default=120)
parser.add_argument("--steps", type=int, default=1000)
arguments = parser.parse_args()


class Sample:
    """Refers to itself by what refers to it."""

    def __init__(self, index: int) -> None:
        self.tokens = [index]
        self.owner = {"sample": self}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    chance = random.Random(rank)
    alive: list[Any] = [{"id": [number]} for number in range(arguments.alive // 2)]
    kept: list[Any] = []
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    batch = torch.randn(16, 64)
    taken: list[float] = []
    for step in range(arguments.warmup + arguments.steps):
        began = time.perf_counter()
        for number in range(chance.randrange(2 * arguments.garbage)):
            Sample(number)
        # What grows all the time (metrics, a cache) makes the collector look at everything again and again.
        kept += [[step] for _ in range(chance.randrange(2 * arguments.garbage))]
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        if step >= arguments.warmup:
            taken.append(time.perf_counter() - began)
    if rank == 0:
        print("result:", json.dumps({"step_s": taken, "alive": len(alive)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
