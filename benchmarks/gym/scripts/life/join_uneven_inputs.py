"""Uneven inputs under the Join context: rank 0 has a long tail of slow batches while rank 1 has joined already."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
TAIL = 8


def batches(rank: int) -> Iterator[torch.Tensor]:
    for _ in range(30):
        yield torch.randn(16, 4)
    if rank == 0:
        for _ in range(TAIL):
            time.sleep(SECONDS / TAIL)
            yield torch.randn(16, 4)
        for _ in range(20):
            yield torch.randn(16, 4)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(2)
ddp = DDP(torch.nn.Linear(4, 1))
sgd = torch.optim.SGD(ddp.parameters(), lr=0.02)
torch.manual_seed(rank)
seen, loss = 0, torch.zeros(())
with Join([ddp]):
    for x in batches(rank):
        loss = (ddp(x) - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
        seen += 1
os.makedirs("out", exist_ok=True)
with open(f"out/rank{rank}.json", "w") as file:
    json.dump({"batches": seen, "loss": round(loss.item(), 4)}, file)
dist.barrier()
dist.destroy_process_group()
