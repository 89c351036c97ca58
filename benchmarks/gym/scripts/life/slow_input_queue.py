"""A producer process of each rank fills a multiprocessing queue slowly; rank 1's is the slowest of all."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
QUICK, SLOW = 30, 4


def produce(queue: mp.Queue, rank: int) -> None:
    for i in range(QUICK):
        queue.put((rank + 1) * i)
    for i in range(SLOW):
        time.sleep(SECONDS / SLOW * (1.0 if rank == 1 else 0.2))
        queue.put(1000 + rank * i)
    for i in range(QUICK):
        queue.put(-i)
    queue.put(None)


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(11)
        self.layer = torch.nn.Linear(128, 128)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1e-4)
        self.losses: list[float] = []

    def step(self, number: int) -> None:
        x = torch.full((64, 128), number / 1000.0)
        loss = (self.layer(x) - number / 500.0).abs().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.layer.parameters():
            dist.all_reduce(p.grad)
        self.optimizer.step()
        self.losses.append(round(loss.item(), 4))
        time.sleep(0.008)


def main() -> None:
    rank = int(os.environ["RANK"])
    context = mp.get_context("fork")
    queue = context.Queue(maxsize=8)
    producer = context.Process(target=produce, args=(queue, rank), daemon=True)
    producer.start()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer()
    while (number := queue.get()) is not None:
        trainer.step(number)
    producer.join()
    os.makedirs("out", exist_ok=True)
    with open(f"out/losses_{rank}.json", "w") as f:
        json.dump(trainer.losses, f, indent=1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
