"""Collectives are started with async_op and polled by is_completed in a loop; rank 0 comes late to some of them."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def finish(work: dist.Work) -> int:
    polls = 0
    while not work.is_completed():
        polls += 1
        time.sleep(0.001)
    work.wait()
    return polls


dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
state = torch.arange(4, dtype=torch.float64)
history = []
most = 0
for step in range(80):
    if rank == 0 and step in (40, 50):
        time.sleep(SECONDS / 2)
    change = torch.cos(state + rank + step)
    most = max(most, finish(dist.all_reduce(change, async_op=True)))
    state += change / 50
    if step % 10 == 0:
        history.append(round(state.sum().item(), 5))
print(f"rank {rank} polled up to {most} times for one all_reduce")
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/history.json", "w") as f:
        json.dump(history, f)
dist.barrier()
dist.destroy_process_group()
