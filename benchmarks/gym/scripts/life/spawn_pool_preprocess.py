"""Every rank prepares its documents with a spawned multiprocessing pool, and its main thread waits in pool.map."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import time
import zlib

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def prepare(document: int) -> int:
    """Parse one document: a little work and a slow disk."""
    time.sleep(SECONDS / 12)
    return zlib.crc32(str(document).encode() * 1000) % 256


def steps(net: torch.nn.Module, data: torch.Tensor, n: int) -> float:
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    for i in range(n):
        x = data.roll(i, dims=0)
        loss = (net(x) - x.mean()).pow(2).mean()
        adam.zero_grad()
        loss.backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        adam.step()
    return round(loss.item(), 4)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Linear(128, 16))
    before = steps(net, torch.randn(64, 16), 30)
    with mp.get_context("spawn").Pool(2) as pool:
        codes = pool.map(prepare, range(rank * 16, rank * 16 + 16), chunksize=2)
        pool.close()
        pool.join()
    dist.barrier()
    after = steps(net, torch.tensor(codes, dtype=torch.float32).repeat(64, 1) / 256, 30)
    os.makedirs("out", exist_ok=True)
    with open(f"out/documents-{rank}.json", "w") as f:
        json.dump({"before": before, "after": after, "codes": codes}, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
