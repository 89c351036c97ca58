"""Early stopping by a vote through all_reduce; validation takes long, each time on another rank."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
EPOCHS, EXPECTED = 20, 3


class EarlyStopping:
    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = float("inf")
        self.bad = 0

    def vote(self, loss: float) -> bool:
        self.bad = self.bad + 1 if loss > self.best - 0.05 else 0
        self.best = min(self.best, loss)
        votes = torch.tensor(float(self.bad >= self.patience))
        dist.all_reduce(votes)
        return votes.item() > dist.get_world_size() / 2


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(16)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = torch.randn(64, 3)
stopping = EarlyStopping(patience=2)
log = []
for epoch in range(EPOCHS):
    for _ in range(20):
        x = torch.randn(16, 3)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizer.step()
    if epoch % size == rank and epoch < EXPECTED:
        time.sleep(SECONDS / EXPECTED)
    with torch.no_grad():
        loss = (model(held_out) - held_out.sum(1, keepdim=True)).abs().mean().item()
    log.append(f"{epoch}: {loss:.3f}")
    if stopping.vote(loss):
        break
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/epochs.txt", "w") as file:
        file.write("\n".join(log) + "\n")
dist.barrier()
dist.destroy_process_group()
