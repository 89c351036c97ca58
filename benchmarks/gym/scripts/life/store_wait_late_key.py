"""The ranks wait in store.wait for a key of the default group's store that rank 1 sets only after it has planned."""
# ranks: 3

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
PLANNER = 1


def plan() -> str:
    """Asks nobody, takes its time."""
    deadline = time.monotonic() + SECONDS
    order = list(range(16))
    while time.monotonic() < deadline:
        order = sorted(order, key=lambda i: (i * 5) % 16)
        time.sleep(SECONDS / 20)
    return ",".join(map(str, sorted(order, key=lambda i: (i * 7) % 16)))


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    store = dist.PrefixStore("planner", _get_default_store())
    data = torch.randn(16, 64, 64, generator=torch.Generator().manual_seed(4))
    state = torch.eye(64)
    log = []

    order = list(range(16))
    for epoch in range(4):
        if epoch == 2:
            if rank == PLANNER:
                store.set("order", plan())
            else:
                store.wait(["order"], timedelta(minutes=30))
            order = [int(i) for i in store.get("order").decode().split(",")]
        for i in order:
            product = state @ data[i] / 8
            dist.all_reduce(product)
            state = 0.9 * state + 0.1 * product / product.norm()
            time.sleep(0.005)
        log.append(f"epoch {epoch}: {state.norm().item():.3f}")

    os.makedirs("out", exist_ok=True)
    with open(f"out/log.{rank}", "w") as f:
        f.write("\n".join(log) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
