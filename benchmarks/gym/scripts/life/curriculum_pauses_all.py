"""A curriculum with pauses: between two lessons all ranks sleep at the same time."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LESSONS = {"easy": 0.1, "medium": 0.5, "hard": 1.5}


def lesson(model: torch.nn.Module, optimizer: torch.optim.Optimizer, noise: float) -> float:
    for _ in range(25):
        clean = torch.randn(16, 8)
        loss = (model(clean + noise * torch.randn(16, 8)) - clean).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return round(loss.item(), 3)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(10)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    grades = {}
    for name, noise in LESSONS.items():
        if grades:
            time.sleep(SECONDS / (len(LESSONS) - 1))
        grades[name] = lesson(model, optimizer, noise)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/grades.json", "w") as file:
            json.dump(grades, file, indent=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
