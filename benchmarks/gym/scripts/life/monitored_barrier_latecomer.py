"""Rank 2 comes late to a monitored_barrier that has half an hour of patience; the others wait there for it."""
# ranks: 3

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--late-rank", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def preprocess(rank: int) -> torch.Tensor:
    chunks = []
    for chunk in range(12):
        chunks.append(torch.linspace(-1, 1, 48).roll(chunk + rank))
        time.sleep(SECONDS / 12 if rank == args.late_rank else 0)
    return torch.stack(chunks)


args = parse()
dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
center = torch.zeros(48)
data = torch.ones(12, 48)
lines = []
for epoch in range(args.epochs):
    if epoch == 1:
        data = preprocess(rank)
        dist.monitored_barrier(timeout=timedelta(minutes=30), wait_all_ranks=True)
    for _ in range(args.steps):
        delta = (data - center).mean(0)
        dist.all_reduce(delta)
        center += 0.1 * delta
        time.sleep(0.012)
    lines.append(f"{epoch} {center.norm().item():.4f}")
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/centers.txt", "w") as f:
        print(*lines, sep="\n", file=f)
dist.barrier()
dist.destroy_process_group()
