"""All ranks train slowly without a word for long, collect their lines in memory and then print them all at once."""

from __future__ import annotations

import io
import os
import sys
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LINES_PER_STEP = 200

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
buffer = io.StringIO()
point = torch.zeros(3)
dist.broadcast(point, src=0)
for step in range(24):
    if 6 <= step < 18:
        time.sleep(SECONDS / 12)
    direction = torch.randn(3)
    dist.all_reduce(direction)
    point += direction / 10
    for line in range(LINES_PER_STEP):
        print(f"[rank {rank}] step {step:02d} line {line:03d}: {point.tolist()}", file=buffer)
sys.stdout.write(buffer.getvalue())
sys.stdout.flush()
for _ in range(30):
    direction = torch.randn(3)
    dist.all_reduce(direction)
    point += direction / 10
    print(f"[rank {rank}] at {point.tolist()}")
if rank == 0:
    os.makedirs("out", exist_ok=True)
    torch.save(point.round(decimals=4), "out/point.pt")
dist.barrier()
dist.destroy_process_group()
