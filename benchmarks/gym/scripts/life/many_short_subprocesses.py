"""Rank 0 calls a small command line tool once per sample, hundreds of times; the others wait at a barrier."""

from __future__ import annotations

import os
import subprocess
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def checksum(text: str) -> str:
    done = subprocess.run(["cksum"], input=text, capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(16)
model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train() -> float:
    for _ in range(30):
        x = torch.randn(64, 64)
        loss = (model(x) - x.cos()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return loss.item()


losses = [train()]
sums = []
if dist.get_rank() == 0:
    start = time.monotonic()
    sums = [checksum(f"sample {i}") for i in range(10)]
    number = 10
    while time.monotonic() - start < SECONDS:
        checksum(f"sample {number}")
        number += 1
dist.barrier()
losses.append(train())

if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/checksums.txt", "w") as f:
        f.write("\n".join([*sums, *(f"{loss:.3f}" for loss in losses)]))
dist.barrier()
dist.destroy_process_group()
