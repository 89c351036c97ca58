"""Rank 1 allocates half a gigabyte of fresh memory and touches every page of it, again and again; rank 0 waits."""

from __future__ import annotations

import mmap
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
BYTES = 512 << 20 if SECONDS > 10 else 32 << 20


def touch() -> int:
    with mmap.mmap(-1, BYTES) as area:
        for page in range(0, BYTES, mmap.PAGESIZE):
            area[page] = 1
        return area[BYTES - mmap.PAGESIZE] + area[1]


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(10)
    net = torch.nn.Linear(128, 128, bias=False)
    for step in range(80):
        if step == 40 and dist.get_rank() == 1:
            end = time.time() + SECONDS
            while time.time() < end:
                assert touch() == 1
        x = torch.randn(32, 128)
        loss = (net(net(x)) - x).square().mean()
        net.zero_grad()
        loss.backward()
        dist.all_reduce(net.weight.grad)
        net.weight.data -= 0.1 * net.weight.grad
        time.sleep(0.003)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        torch.save(net.weight.detach().round(decimals=3), "out/weight.pt")
        with open("out/loss.txt", "w") as f:
            f.write(f"{loss.item():.3f}")
    dist.barrier()
    dist.destroy_process_group()


main()
