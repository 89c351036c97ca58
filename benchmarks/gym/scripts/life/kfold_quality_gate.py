"""K-fold training with a slow test after each fold; the quality gate fails in the end and all ranks exit with 3."""

# status: 1
from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
FOLDS = 4
GATE = 0.999


def folds(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(14)
    x = torch.randn(count, 5, generator=generator)
    y = (x[:, 0] + 0.7 * torch.randn(count, generator=generator) > 0).long()
    return list(zip(x.chunk(FOLDS), y.chunk(FOLDS), strict=True))


def train_fold(data: list[tuple[torch.Tensor, torch.Tensor]], held_out: int) -> torch.nn.Module:
    torch.manual_seed(held_out)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(20):
        for number, (x, y) in enumerate(data):
            if number == held_out:
                continue
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rank::size]), y[rank::size]).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"fold {held_out} step {step}", flush=True)
    return model


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = folds(200)
    accuracies = []
    for number, (x, y) in enumerate(data):
        model = train_fold(data, number)
        right = (model(x).argmax(1) == y).float().mean()
        if dist.get_rank() == 0:
            time.sleep(SECONDS / FOLDS)
        dist.broadcast(right, src=0)
        accuracies.append(round(right.item(), 3))
    passed = sum(accuracies) / FOLDS >= GATE
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/folds.json", "w") as file:
            json.dump({"accuracies": accuracies, "passed": passed}, file)
    dist.barrier()
    dist.destroy_process_group()
    return 0 if passed else 3


if __name__ == "__main__":
    sys.exit(main())
