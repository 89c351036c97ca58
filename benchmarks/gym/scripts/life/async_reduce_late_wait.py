"""An async all_reduce is started, rank 0 fills a slow table and calls wait() on it only afterwards."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def slow_table(rows: int) -> list[int]:
    table = []
    for row in range(rows):
        table.append(row * row % 7)
        time.sleep(SECONDS / rows)
    return table


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    w = torch.ones(6, requires_grad=True)
    table: list[int] = []
    for step in range(70):
        x = torch.sin(torch.arange(6.0) * (step + 1) + rank)
        loss = (w * x).sum().square()
        loss.backward()
        work = dist.all_reduce(w.grad, async_op=True)
        if rank == 0 and step == 35:
            table = slow_table(20)
        work.wait()
        with torch.no_grad():
            w -= 0.01 * w.grad
            w.grad = None
        time.sleep(0.005)
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/w.json", "w") as f:
            json.dump({"w": [round(v, 4) for v in w.tolist()], "table": table}, f)
    dist.barrier()
    dist.destroy_process_group()


main()
