"""DDP over gloo whose samples take long to make. File `poison`: a batch of rank 1 is no number. `wait`: it waits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK = int(os.environ["RANK"])


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]  # mypy skips torch
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.randn(16)


def fetch_vocabulary_update() -> None:
    """A request without a timeout: a pipe that nobody writes to."""
    with open("gate") as gate:
        gate.read()


def is_due(name: str) -> bool:
    """Once."""
    if RANK != 1 or not Path(name).exists():
        return False
    Path(name).unlink()
    return True


torch.manual_seed(1)
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
torch.manual_seed(2 + RANK)
samples = Samples()
loader = DataLoader(samples, 8, sampler=DistributedSampler(samples, shuffle=False))
for batch in loader:
    if is_due("poison"):
        batch *= float("nan")  # noqa: PLW2901
    if is_due("wait"):
        fetch_vocabulary_update()
    time.sleep(0.01)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
