"""A helper stops and continues rank 1 in short turns, as cpulimit does, while that rank computes alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LIMITER = """
import os, signal, sys, time
pid, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end and os.getppid() == pid:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.35)
    os.kill(pid, signal.SIGCONT)
    time.sleep(0.15)
"""


def preprocess(seconds: float) -> int:
    end = time.monotonic() + seconds
    result = 0
    while not result or time.monotonic() < end:
        result = sum(i * i % 7 for i in range(50_000))
    return result


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(12)
rank = dist.get_rank()
w = torch.randn(200, 200, requires_grad=True)
sgd = torch.optim.SGD([w], lr=0.01)


def steps(count: int) -> float:
    for _ in range(count):
        x = torch.randn(64, 200)
        loss = (x @ w @ w.T - x).square().mean().log()
        sgd.zero_grad()
        loss.backward()
        dist.all_reduce(w.grad)
        sgd.step()
    return loss.item()


before = steps(30)
total = torch.zeros(1)
if rank == 1:
    with subprocess.Popen([sys.executable, "-c", LIMITER, str(os.getpid()), str(SECONDS * 0.9)]):
        total += preprocess(SECONDS)
dist.all_reduce(total)
after = steps(30)
if rank == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/total.txt", "w") as f:
        print(int(total.item()), f"{before:.2f} {after:.2f}", file=f)
dist.barrier()
dist.destroy_process_group()
