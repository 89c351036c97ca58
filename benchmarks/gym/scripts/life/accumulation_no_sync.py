"""Gradient accumulation over many slow micro-batches under no_sync: a collective comes only now and then."""

from __future__ import annotations

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(4)
model = DistributedDataParallel(torch.nn.Linear(12, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(40 + dist.get_rank())


def update(micro_batches: int, pause: float) -> None:
    for number in range(micro_batches):
        last = number == micro_batches - 1
        with contextlib.nullcontext() if last else model.no_sync():
            x = torch.randn(4, 12)
            loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
            (loss / micro_batches).backward()
        time.sleep(pause)
    optimizer.step()
    optimizer.zero_grad()


for _ in range(30):
    update(2, 0.002)
for big in range(2):
    # the effective batch grows; the ranks read at different speeds
    update(64, SECONDS / 128 if dist.get_rank() == big else SECONDS / 256)
for _ in range(30):
    update(2, 0.002)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    torch.save({k: v.round(decimals=4) for k, v in model.module.state_dict().items()}, "out/model.pt")
dist.barrier()
dist.destroy_process_group()
