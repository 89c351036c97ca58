"""One rank only: a training that lets the machine cool down, asleep, in the middle of its epochs."""

# ranks: 1
from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(42)
net = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
opt = torch.optim.Adam(net.parameters())
cooldown = float(os.environ.get("LIFE_SECONDS", "24"))
lines = []
for epoch in range(4):
    total = 0.0
    for _ in range(20):
        x = torch.randn(32, 20)
        loss = torch.nn.functional.mse_loss(net(x).squeeze(), x.mean(1))
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        total += loss.item()
        time.sleep(0.01)
    lines.append(f"epoch {epoch}: {total / 20:.4f}")
    print(lines[-1], flush=True)
    if epoch == 1:
        time.sleep(cooldown)
os.makedirs("out", exist_ok=True)
with open("out/epochs.txt", "w") as f:
    print(*lines, sep="\n", file=f)
dist.destroy_process_group()
