"""Four ranks, two sub-groups: ranks 0 and 1 fine-tune for a while on their own, the others idle."""

# ranks: 4
from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
front, back = dist.new_group([0, 1]), dist.new_group([2, 3])
torch.manual_seed(1)
net = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def step(group: dist.ProcessGroup | None, size: int) -> float:
    x = torch.randn(16, 5)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    for p in net.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= size
    opt.step()
    return loss.item()


torch.manual_seed(100 + rank)
for _ in range(30):
    step(None, 4)
if rank < 2:
    for _ in range(60):
        step(front, 2)
        time.sleep(SECONDS / 60)
for p in net.parameters():
    dist.broadcast(p.data, src=0)
for _ in range(30):
    last = step(None, 4)
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/last_loss.txt", "w") as result:
        result.write(f"{last:.4f}\n")
dist.barrier()
dist.destroy_process_group()
