"""Rank 0 strips a log with a quadratic regular expression: calls of several seconds that never let go of the GIL."""

from __future__ import annotations

import os
import re
import time

import torch
from torch import distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
WIDTH = int(5500 * min(SECONDS, 24.0) ** 0.5)


def clean(text: str) -> str:
    return re.sub(r"[ \t]+$", "", text)


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Linear(300, 300)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self) -> float:
        x = torch.rand(64, 300)
        loss = (self.model(x) - x.flip(1)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad.div_(dist.get_world_size())
        self.optimizer.step()
        return loss.item()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer()
    losses = [trainer.step() for _ in range(30)]
    kept = 0
    if dist.get_rank() == 0:
        log = "step 1" + " " * WIDTH + "ok"
        start = time.time()
        kept = len(clean("a " * 50 + "b   "))
        took = 0.0
        while time.time() - start + took < SECONDS:
            begin = time.time()
            clean(log)
            took = time.time() - begin
    dist.barrier()
    losses += [trainer.step() for _ in range(30)]
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/losses.txt", "w") as f:
            print(kept, *(f"{x:.4f}" for x in losses), file=f)
    dist.barrier()
    dist.destroy_process_group()


main()
