"""Rank 0 sits in a blocking TCPStore.get for the learning rate that rank 1's tuner publishes when it is through."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()

port = torch.zeros(1, dtype=torch.long)
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(hours=1))
    port += store.port
dist.broadcast(port, src=0)
if rank == 1:
    store = dist.TCPStore("127.0.0.1", port.item(), is_master=False, timeout=timedelta(hours=1))

torch.manual_seed(0)
model = torch.nn.Conv1d(4, 16, 5)
losses = []


def fit(lr: float) -> None:
    opt = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(30):
        loss = (model(torch.randn(16, 4, 80)) - 0.5).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        losses.append(loss.item())
        time.sleep(0.008)


def tune() -> None:
    for trial in range(1, 9):
        time.sleep(SECONDS / 8)
        store.set(f"trial{trial}", f"{0.01 * trial:.2f}")
    store.set("lr", "0.04")


fit(0.01)
if rank == 1:
    tune()
fit(float(store.get("lr")))
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/losses.txt", "w") as f:
        f.writelines(f"{loss:.3f}\n" for loss in losses)
dist.barrier()
dist.destroy_process_group()
