"""A pipeline of four stages by send and recv: one stage after another is slow, the others idle in recv."""
# ranks: 4

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SLOW = {10: 0, 20: 2, 30: 3, 40: 1}


class Stage:
    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.layer = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.05)

    def step(self, batch: torch.Tensor, bubble: float) -> float:
        x = batch
        if self.rank > 0:
            x = torch.empty_like(batch)
            dist.recv(x, src=self.rank - 1)
            x.requires_grad_()
        until = time.monotonic() + bubble
        while time.monotonic() < until:
            with torch.no_grad():
                self.layer(x)
            time.sleep(0.02)
        y = self.layer(x)
        self.optimizer.zero_grad()
        loss = (y - batch.mean()).square().mean()
        if self.rank < self.world - 1:
            dist.send(y.detach(), dst=self.rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, src=self.rank + 1)
            y.backward(grad)
        else:
            loss.backward()
        if self.rank > 0:
            dist.send(x.grad, dst=self.rank - 1)
        self.optimizer.step()
        return loss.item()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(23)
    rank = dist.get_rank()
    stage = Stage(rank, dist.get_world_size())
    losses = []
    for step in range(60):
        batch = torch.randn(16, 32)
        bubble = SECONDS / len(SLOW) if SLOW.get(step) == rank else 0.0
        losses.append(stage.step(batch, bubble))
    os.makedirs("out", exist_ok=True)
    with open(f"out/stage{rank}.txt", "w") as f:
        f.write(f"{losses[-1]:.3f}\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
