"""What `[guards] numeric = "skip"` adds to a training step: steps with it and without, in turns; prints a table.

    guardrun --guard-guards-numeric skip --nproc-per-node 2 benchmarks/scripts/guarded_step.py

Both kinds of turns are with the hooks: without `skip` they only watch. What is timed is step() of the optimizer; on a
device, which it has to wait for, the whole step. Beside the median stands the lowest tenth, which a busy machine moves
less.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from guardrun.hooks.rank import rank as hooks_rank

parser = argparse.ArgumentParser()
parser.add_argument("--blocks", type=int, default=200, help="of each kind")
parser.add_argument("--steps", type=int, default=1, help="a block")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--device", default="cpu")
arguments = parser.parse_args()
DEVICE = torch.device(arguments.device)


def make() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def sharded() -> torch.nn.Module:
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    model = make()
    fully_shard(model, mesh=mesh)
    return model


def measure(name: str, model: torch.nn.Module) -> None:
    """Print microseconds of a step with the guard and without."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, foreach=True)
    x = torch.randn(8, arguments.width, device=DEVICE)
    rank: Any = hooks_rank.active
    guard = rank.guard

    def block() -> float:
        began_s, took_s = time.perf_counter(), 0.0
        for _ in range(arguments.steps):
            model(x).square().mean().backward()
            step_s = time.perf_counter()
            optimizer.step()
            took_s += time.perf_counter() - step_s
            optimizer.zero_grad()
        if DEVICE.type != "cpu":
            torch.accelerator.synchronize()
            took_s = time.perf_counter() - began_s
        return float(1e6 * took_s / arguments.steps)

    block()
    taken: dict[str, list[float]] = {"watch": [], "skip": []}
    for _ in range(arguments.blocks):
        for kind, values in taken.items():
            rank.guard = guard if kind == "skip" else None
            values.append(block())
    rank.guard = guard
    if rank.global_rank == 0:
        count = sum(each.numel() for each in model.parameters())
        print(f"{name}: {count:,} parameters in {len(list(model.parameters()))} tensors")
        for kind, values in taken.items():
            print(
                f"    {kind}: {median(values):.0f} µs (lowest tenth: {quantiles(values, n=10)[0]:.0f} µs)", flush=True
            )


def main() -> None:
    torch.set_num_threads(1)
    if int(os.environ["WORLD_SIZE"]) == 1:
        measure("one process", make())
        return
    dist.init_process_group("gloo")
    ways: dict[str, Callable[[], torch.nn.Module]] = {
        "DDP": lambda: torch.nn.parallel.DistributedDataParallel(make()),
        "FSDP2": sharded,
    }
    for name, way in ways.items():
        measure(name, way())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
