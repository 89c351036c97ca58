"""Rank 1 keeps very many small objects and collects garbage by hand now and then; rank 0 waits."""

from __future__ import annotations

import gc
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Node:
    def __init__(self, parent: Node | None) -> None:
        self.parent = parent
        self.children: list[Node] = []
        if parent is not None:
            parent.children.append(self)


def grow(count: int) -> list[Node]:
    nodes = [Node(None)]
    for i in range(count):
        nodes.append(Node(nodes[i // 3]))
    return nodes


def full_collections(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        garbage = grow(1000)
        del garbage
        gc.collect()


def main() -> None:
    gc.disable()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    model = torch.nn.Bilinear(32, 32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    heap = grow(600_000 if SECONDS > 10 else 50_000) if dist.get_rank() == 1 else []
    pauses = (30, 50, 70)
    for step in range(100):
        if step in pauses and heap:
            full_collections(SECONDS / len(pauses))
        x, y = torch.randn(16, 32), torch.randn(16, 32)
        loss = model(x, y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/result.txt", "w") as f:
            f.write(f"{loss.item():.3f} {model.bias.sum().item():.4f}\n")
    dist.barrier()
    dist.destroy_process_group()


main()
