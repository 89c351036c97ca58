"""Rank 0 counts n-queens placements in plain Python for a curriculum; the others wait in a broadcast."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def queens(n: int, columns: int = 0, left: int = 0, right: int = 0) -> int:
    full = (1 << n) - 1
    if columns == full:
        return 1
    count = 0
    free = full & ~(columns | left | right)
    while free:
        bit = free & -free
        free ^= bit
        count += queens(n, columns | bit, (left | bit) << 1, (right | bit) >> 1)
    return count


def curriculum() -> list[int]:
    deadline = time.monotonic() + SECONDS
    counts = [queens(n) for n in range(4, 9)]
    while time.monotonic() < deadline:
        assert queens(8) == counts[-1]
    return counts


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scale: float, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 128)
        loss = (model(x) - scale * x.sum(dim=1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(round(loss.item(), 4))
    return losses


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    first = train(net, adam, 0.01, 30)
    box = [curriculum() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    second = train(net, adam, box[0][-1] / 9200, 30)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/queens.json", "w") as f:
            json.dump({"counts": box[0], "first": first, "second": second}, f)
    dist.barrier()
    dist.destroy_process_group()
