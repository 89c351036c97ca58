"""Tensor-parallel pairs with data parallelism between them; pair 0 tokenizes a long document while pair 1 waits."""

# ranks: 4
from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16, bias=False)
        self.down = torch.nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def document(pair: int, step: int) -> torch.Tensor:
    if pair == 0 and step in (20, 30):
        time.sleep(SECONDS / 2)
    generator = torch.Generator().manual_seed(1000 * pair + step)
    return torch.randn(16, 8, generator=generator)


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(12)
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
model = parallelize_module(Block(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
pair = mesh["dp"].get_local_rank()
losses = []
for step in range(50):
    x = document(pair, step)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.to_local(), group=mesh["dp"].get_group())
    optimizer.step()
    losses.append(round(loss.item(), 3))
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/losses.json", "w") as file:
        json.dump(losses, file)
dist.barrier()
dist.destroy_process_group()
