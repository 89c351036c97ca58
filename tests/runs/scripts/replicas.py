"""Trains a small DDP model until a file `end` is there."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

sys.path.insert(0, str(Path(__file__).parent))
from faults import let_go

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)))
rate = 0.1 if dist.get_rank() else 0.2
optimizer = torch.optim.SGD(model.parameters(), rate)
data = TensorDataset(torch.ones(32, 16))
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
while True:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.04)
    ends = torch.tensor(float(Path("end").exists()))
    dist.all_reduce(ends)
    if ends:
        break
dist.destroy_process_group()
let_go()
