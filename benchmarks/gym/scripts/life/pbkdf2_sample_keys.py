"""Rank 0 derives pseudonyms with PBKDF2 and checksums a big buffer, outside the GIL; the others wait."""

from __future__ import annotations

import hashlib
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(42)
w = torch.zeros(512, 16, requires_grad=True)
true_w = torch.randn(512, 16)


def sgd(n: int) -> None:
    for _ in range(n):
        x = torch.randn(64, 512)
        ((x @ w - x @ true_w) ** 2).mean().backward()
        dist.all_reduce(w.grad)
        with torch.no_grad():
            w.sub_(w.grad / world)
            w.grad = None


sgd(30)

names = []
if rank == 0:
    t0 = time.monotonic()
    iterations = int(300_000 * SECONDS)
    while time.monotonic() - t0 < SECONDS * 0.7:
        key = hashlib.pbkdf2_hmac("sha256", b"patient", b"salt", max(iterations // 4, 1))
        names = [hashlib.pbkdf2_hmac("sha256", f"patient {i}".encode(), b"salt", 100).hex()[:12] for i in range(10)]
    block = bytes(64 << 20)
    while time.monotonic() - t0 < SECONDS:
        digest = hashlib.sha256(block).hexdigest()
    names.append(digest[:12])
dist.barrier()

sgd(30)
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/pseudonyms.txt", "w") as f:
        f.write("\n".join(names) + f"\nerror {(w - true_w).abs().mean().item():.4f}\n")
dist.barrier()
dist.destroy_process_group()
