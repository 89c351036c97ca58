"""DataLoaders with spawned workers: every epoch starts new interpreters that import torch and prepare themselves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
EPOCHS = 2


class Stream(IterableDataset):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        time.sleep(SECONDS / EPOCHS / 2)
        generator = torch.Generator().manual_seed(self.epoch)
        for _ in range(30 * 8):
            yield torch.rand(12, generator=generator)


def warm_up(worker: int) -> None:
    time.sleep(SECONDS / EPOCHS / 2)


def fit(model: torch.nn.Module, batches: object) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    total = 0.0
    for batch in batches:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()
        total += loss.item()
    return round(total, 3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    auto = torch.nn.Sequential(torch.nn.Linear(12, 6), torch.nn.ReLU(), torch.nn.Linear(6, 12))
    totals = [fit(auto, torch.rand(30, 8, 12))]
    for epoch in range(EPOCHS):
        loader = DataLoader(
            Stream(epoch), batch_size=8, num_workers=1, multiprocessing_context="spawn", worker_init_fn=warm_up
        )
        totals.append(fit(auto, loader))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/totals.json", "w") as f:
            json.dump(totals, f)
    dist.barrier()
    dist.destroy_process_group()
