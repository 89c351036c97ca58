"""DDP with a communication hook in Python that compresses; on rank 0 it is slow for some of the steps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


@dataclass
class HookState:
    calls: int = 0
    slow: range = range(30, 36)


def compress(state, bucket):  # DDP refuses annotations that are strings
    state.calls += 1
    if dist.get_rank() == 0 and state.calls in state.slow:
        time.sleep(SECONDS / len(state.slow))
    small = bucket.buffer().to(torch.float16).to(torch.float32) / dist.get_world_size()
    future = dist.all_reduce(small, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(19)
model = DDP(torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 2)))
model.register_comm_hook(HookState(), compress)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(70):
    x = torch.randn(20, 6)
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/loss.txt", "w") as file:
        file.write(f"{loss.item():.3f}\n")
dist.barrier()
dist.destroy_process_group()
