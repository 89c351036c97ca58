"""Rank 0 plays episodes of a grid world in Python, and the learners on the other ranks wait for experience."""

from __future__ import annotations

import os
import random
import time

import torch
import torch.distributed as dist
from torch import nn

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SIZE, ROUNDS, BATCH = 8, 3, 64


class GridWorld:
    moves = ((0, 1), (1, 0), (0, -1), (-1, 0))

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.reset()

    def reset(self) -> tuple[int, int]:
        self.at = (self.rng.randrange(SIZE), self.rng.randrange(SIZE))
        return self.at

    def step(self, action: int) -> tuple[tuple[int, int], float, bool]:
        dx, dy = self.moves[action]
        self.at = (min(max(self.at[0] + dx, 0), SIZE - 1), min(max(self.at[1] + dy, 0), SIZE - 1))
        done = self.at == (SIZE - 1, SIZE - 1)
        return self.at, 1.0 if done else -0.05, done


def play(world: GridWorld, seconds: float) -> torch.Tensor:
    """Episodes until the replay buffer has been refreshed for long enough; the oldest transitions are sent."""
    transitions: list[list[float]] = []
    end = time.monotonic() + seconds
    while len(transitions) < BATCH or time.monotonic() < end:
        state, done, length = world.reset(), False, 0
        while not done and length < 200:
            action = world.rng.randrange(4)
            following, reward, done = world.step(action)
            if len(transitions) < BATCH:
                transitions.append([*state, action, reward, *following])
            state = following
            length += 1
    return torch.tensor(transitions)


def learn(q: nn.Module, opt: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    for _ in range(30):
        with torch.no_grad():
            target = batch[:, 3] + 0.9 * q(batch[:, 4:]).max(dim=1).values
        value = q(batch[:, :2]).gather(1, batch[:, 2:3].long()).squeeze(1)
        loss = (value - target).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        for p in q.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(99)
    q = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4))
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    batch = torch.rand(BATCH, 6)
    losses = [learn(q, opt, batch)]
    for number in range(ROUNDS):
        if dist.get_rank() == 0:
            batch = play(GridWorld(number), SECONDS / ROUNDS)
        dist.broadcast(batch, src=0)
        losses.append(learn(q, opt, batch))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/td_losses.txt", "w") as f:
            f.write(" ".join(f"{loss:.3f}" for loss in losses))
    dist.barrier()
    dist.destroy_process_group()
