"""Rank 0 redraws a rich progress bar while a child process prepares shards; after it all ranks go on under tqdm."""

# needs: rich, tqdm
from __future__ import annotations

import os
import subprocess
import time

import torch
import torch.distributed as dist
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from tqdm import trange

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def prepare_shards() -> None:
    child = subprocess.Popen(["sleep", str(SECONDS)])
    with Progress(SpinnerColumn(), "{task.description}", TimeElapsedColumn()) as progress:
        task = progress.add_task("preparing shards", total=None)
        while child.poll() is None:
            progress.advance(task)
            progress.refresh()
            time.sleep(0.1)


def train(steps: int, weight: torch.Tensor, rank: int) -> None:
    for step in trange(steps, disable=rank != 0, desc="train", mininterval=0.05):
        x = torch.sin(torch.arange(10.0) + step + rank)
        weight.grad = None
        (weight @ x - x.sum()).square().backward()
        dist.all_reduce(weight.grad)
        with torch.no_grad():
            weight -= 0.005 * weight.grad
        time.sleep(0.01)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.zeros(10, requires_grad=True)
train(30, weight, rank)
if rank == 0:
    prepare_shards()
dist.barrier()
train(40, weight, rank)
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/weight.txt", "w") as file:
        file.writelines(f"{value:.4f}\n" for value in weight.tolist())
dist.barrier()
dist.destroy_process_group()
