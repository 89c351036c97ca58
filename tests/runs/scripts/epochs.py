"""One of two ranks that train epoch after epoch, evaluate after each, and stop once a file is there.

argv: `wrong` (the sampler has no rank of its own and never hears of an epoch) or `right`, and the file.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES = 320
IS_WRONG, STOP = sys.argv[1] == "wrong", Path(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
inputs = torch.randn(SAMPLES, 8)
data = TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
sampler: DistributedSampler[object] = DistributedSampler(data, rank=0 if IS_WRONG else dist.get_rank(), shuffle=True)
train, check = DataLoader(data, batch_size=4, sampler=sampler), DataLoader(data, batch_size=8)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.001)
stop = torch.zeros(1)
epoch = 0
while not stop:
    if not IS_WRONG:
        sampler.set_epoch(epoch)
    for features, target in train:
        (model(features) - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)  # a step's work
    with torch.no_grad():
        for features, _ in check:
            model(features)
    epoch += 1
    stop.fill_(STOP.exists())
    dist.all_reduce(stop)
dist.destroy_process_group()
