"""On rank 0 four threads compute statistics (numpy and pure Python); the main thread only joins them."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def histogram(seed: int, results: dict[int, int], end: float) -> None:
    values = np.random.default_rng(seed).integers(0, 1000, 50_000)
    results[seed] = int(np.bincount(values, minlength=1000).argmax())
    while time.monotonic() < end:
        np.sort(values)


def vowels(seed: int, results: dict[int, int], end: float) -> None:
    text = "the quick brown fox jumps over the lazy dog" * seed
    results[seed] = sum(c in "aeiou" for c in text)
    while time.monotonic() < end:
        sum(c in "aeiou" for c in text)


def quick_steps(model: torch.nn.Linear, count: int) -> torch.Tensor:
    for _ in range(count):
        x = torch.randn(128, 96)
        model.zero_grad()
        model(x).relu().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data.sub_(p.grad, alpha=0.05)
    return model.weight.detach().sum()


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(21)
model = torch.nn.Linear(96, 96)
total = quick_steps(model, 40)
results: dict[int, int] = {}
if dist.get_rank() == 0:
    end = time.monotonic() + SECONDS
    jobs = [(histogram, 1), (histogram, 2), (vowels, 30), (vowels, 40)]
    threads = [threading.Thread(target=job, args=(seed, results, end)) for job, seed in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
dist.barrier()
total += quick_steps(model, 40)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/statistics.txt", "w") as f:
        for seed, value in sorted(results.items()):
            f.write(f"{seed} {value}\n")
        f.write(f"{total.item():.3f}\n")
dist.barrier()
dist.destroy_process_group()
