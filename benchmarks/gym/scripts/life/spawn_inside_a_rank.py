"""Rank 0 spawns two workers that train a small reward model among themselves; the other rank waits at a barrier."""

from __future__ import annotations

import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def reward_worker(index: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    weight = torch.full((4,), float(index))
    for _ in range(20):
        dist.all_reduce(weight)
        weight /= 2
        time.sleep(SECONDS / 20)
    if index == 0:
        torch.save(weight, f"{folder}/reward.pt")
    dist.barrier()
    dist.destroy_process_group()


def train_reward_model() -> torch.Tensor:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(reward_worker, args=(folder,), nprocs=2)
        return torch.load(f"{folder}/reward.pt")


def run() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.05)
    reward = torch.ones(4)
    for step in range(70):
        if step == 35:
            if dist.get_rank() == 0:
                reward = train_reward_model()
            dist.barrier()
            dist.broadcast(reward, src=0)
        x = torch.randn(6, 4)
        optimizer.zero_grad()
        (policy(x) @ reward - 1).square().mean().backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/policy.txt", "w") as file:
            file.write(" ".join(f"{b:.3f}" for b in policy.bias.tolist()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
