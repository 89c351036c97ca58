"""Every rank sorts long Python lists of its own before the second epoch, and the last rank has the longest ones."""

from __future__ import annotations

import os
import random
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LENGTH = 1_500_000 if SECONDS > 10 else 100_000


def length_buckets(rank: int, world: int) -> int:
    budget = SECONDS if rank == world - 1 else SECONDS / 8
    begin = time.perf_counter()
    rng = random.Random(rank)
    median = sorted(rng.random() for _ in range(1001))[500]
    lengths = [rng.random() for _ in range(LENGTH)]
    while time.perf_counter() - begin < budget:
        rng.shuffle(lengths) if LENGTH < 200_000 else lengths.reverse()
        lengths = sorted(lengths, key=lambda v: (v * 7919) % 1.0)
    return int(median * 1000)


def run_epoch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, group_size: int) -> str:
    for _ in range(30):
        x = torch.randn(16, 3, 16, 16)
        y = torch.randint(0, 10, (16,))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= group_size
        optimizer.step()
    checksum = torch.stack([p.detach().abs().sum() for p in model.parameters()]).sum()
    return f"{checksum.item():.3f}"


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(6)
cnn = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 10)
)
sgd = torch.optim.SGD(cnn.parameters(), lr=0.05, momentum=0.9)
world_size = dist.get_world_size()
lines = [run_epoch(cnn, sgd, world_size)]
bucket = torch.tensor([length_buckets(dist.get_rank(), world_size)])
dist.all_reduce(bucket)
lines.append(f"bucket {bucket.item()}")
lines.append(run_epoch(cnn, sgd, world_size))
os.makedirs("out", exist_ok=True)
with open(f"out/rank{dist.get_rank()}.txt", "w") as fh:
    fh.write("\n".join(lines))
dist.barrier()
dist.destroy_process_group()
