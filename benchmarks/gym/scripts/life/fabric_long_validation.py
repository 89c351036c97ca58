"""A Lightning Fabric loop with one long validation in the middle; rank 0 has the slow half."""

# needs: lightning
from __future__ import annotations

import os
import time

import lightning as L
import torch
from torch.nn.functional import cross_entropy

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def validate(fabric: L.Fabric, model: torch.nn.Module) -> float:
    model.eval()
    total = torch.zeros(())
    with torch.no_grad():
        for batch in range(10):
            x = torch.randn(8, 12, generator=torch.Generator().manual_seed(batch))
            total += cross_entropy(model(x), x[:, :3].argmax(1))
            time.sleep(SECONDS / 10 if fabric.global_rank == 0 else SECONDS / 100)
    model.train()
    return fabric.all_reduce(total / 10, reduce_op="mean").item()


torch.set_num_threads(1)
devices = int(os.environ["LOCAL_WORLD_SIZE"])
fabric = L.Fabric(accelerator="cpu", devices=devices, strategy="ddp")
fabric.launch()
fabric.seed_everything(8)
net = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.01))
score = 0.0
for step in range(70):
    x = torch.randn(16, 12)
    optimizer.zero_grad()
    fabric.backward(cross_entropy(model(x), x[:, :3].argmax(1)))
    optimizer.step()
    if step == 35:
        score = validate(fabric, model)
if fabric.global_rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/validation.txt", "w") as file:
        file.write(f"{score:.3f}\n")
fabric.barrier()
torch.distributed.destroy_process_group()
