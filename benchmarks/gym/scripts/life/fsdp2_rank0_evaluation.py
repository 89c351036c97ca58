"""FSDP2 (fully_shard): rank 0 evaluates the gathered weights for long while the other rank waits at a barrier."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def build() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(32, 10)
        loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluate(weights: dict[str, torch.Tensor]) -> float:
    copy = build()
    copy.load_state_dict(weights)
    right = 0
    for part in range(12):
        x = torch.randn(100, 10, generator=torch.Generator().manual_seed(part))
        right += int((copy(x).argmax(1) == (x.sum(1) > 0).long()).sum())
        time.sleep(SECONDS / 12)
    return right / 1200


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = build()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
train(model, optimizer, 30)
full = {name: value.full_tensor().detach() for name, value in model.state_dict().items()}
accuracy = evaluate(full) if dist.get_rank() == 0 else None
dist.barrier()
train(model, optimizer, 30)
if accuracy is not None:
    os.makedirs("out", exist_ok=True)
    with open("out/accuracy.json", "w") as file:
        json.dump({"accuracy": round(accuracy, 2)}, file)
dist.barrier()
dist.destroy_process_group()
