"""Trains on the emulated device, alone, with a batch that is NaN; prints each step's waits, and what came of it."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise

import torch

from tests.emu import device as emu

STEPS, NAN_AT = 6, 3

torch.manual_seed(1)
torch.set_num_threads(1)
emu.use()
model = torch.nn.Linear(8, 8).to("emu")
optimizer = torch.optim.AdamW(model.parameters(), 0.05)
batches = [torch.randn(4, 8).to("emu") for _ in range(STEPS)]
batches[NAN_AT - 1] = batches[NAN_AT - 1] * float("nan")
kept, waits = [], []
for batch in batches:
    model(batch).square().mean().backward()
    before = emu.count_waits()
    optimizer.step()
    waits.append(emu.count_waits() - before)
    optimizer.zero_grad()
    kept.append([parameter.detach().clone() for parameter in model.parameters()])
emu.synchronize()
told = {
    "waits": waits,
    "same": [all(map(torch.equal, *pair)) for pair in pairwise(kept)],
    "is_finite": all(bool(each.cpu().isfinite().all()) for each in kept[-1]),
}
print(json.dumps(told))
sys.stdout.flush()
os._exit(0)
