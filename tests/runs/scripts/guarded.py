"""One of two ranks that share a model (FSDP2); at step BAD one number of rank 1's part of the gradients is infinite."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, BAD = 30, 20
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for step in range(1, STEPS + 1):
    model(torch.randn(4, 8)).square().mean().backward()
    if step == BAD and dist.get_rank() == 1:
        model.weight.grad._local_tensor[0, 0] = math.inf  # type: ignore[union-attr]
    optimizer.step()
    optimizer.zero_grad()
whole = model.weight.full_tensor()  # type: ignore[operator]
print(f"finite: {bool(torch.isfinite(whole).all())}", flush=True)
dist.destroy_process_group()
