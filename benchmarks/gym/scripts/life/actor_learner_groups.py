"""Two actors play long episodes while two learners wait for the batch; each pair has a process group of its own."""

# ranks: 4
from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
ITERATIONS = 3
ACTORS, LEARNERS = [0, 1], [2, 3]


class Actor:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.policy = torch.zeros(8)

    def play(self) -> torch.Tensor:
        frames = torch.zeros(32, 8)
        for frame in range(32):
            frames[frame] = torch.randn(8) + 0.1 * self.policy
            time.sleep(SECONDS / ITERATIONS / 32)
        statistics = frames.mean(0)
        dist.all_reduce(statistics, group=self.group)
        return frames - statistics / 2

    def iteration(self) -> None:
        dist.send(self.play(), dst=dist.get_rank() + 2)


class Learner:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.net = torch.nn.Linear(8, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.losses: list[float] = []

    def learn(self, frames: torch.Tensor) -> None:
        loss = (self.net(frames).squeeze() - frames.norm(dim=1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.net.parameters():
            dist.all_reduce(parameter.grad, group=self.group)
        self.optimizer.step()
        self.losses.append(round(loss.item(), 3))

    def iteration(self) -> None:
        frames = torch.empty(32, 8)
        dist.recv(frames, src=dist.get_rank() - 2)
        for _ in range(25):
            self.learn(frames)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    actors, learners = dist.new_group(ACTORS), dist.new_group(LEARNERS)
    torch.manual_seed(dist.get_rank())
    me = Actor(actors) if dist.get_rank() in ACTORS else Learner(learners)
    for _ in range(ITERATIONS):
        me.iteration()
    if dist.get_rank() == 2:
        os.makedirs("out", exist_ok=True)
        with open("out/learner.json", "w") as f:
            json.dump(me.losses, f)
    dist.barrier()
    dist.destroy_process_group()
