"""Rank 0 paces itself twice by spinning on time.perf_counter until its slot comes; the others wait."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(14)
    head = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    opt = torch.optim.AdamW(head.parameters(), lr=1e-3)
    slots = {30: SECONDS / 2, 60: SECONDS / 2}
    losses = []
    for step in range(90):
        if dist.get_rank() == 0 and step in slots:
            spin(slots[step])
        x = torch.randn(4, 12, 32)
        loss = (head(x, x, x)[0] - x.mean(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in head.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/losses.csv", "w") as f:
            f.write("step,loss\n")
            f.writelines(f"{i},{loss:.3f}\n" for i, loss in enumerate(losses))
    dist.barrier()
    dist.destroy_process_group()


main()
