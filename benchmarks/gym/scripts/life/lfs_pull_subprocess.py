"""Rank 0 runs a slow "lfs pull" of the data in a subprocess with its output piped; the rest wait in all_reduce."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

PULL = r"""
set -e
cd "$1"
i=0
while [ $i -lt 10 ]; do
    sleep "$2"
    i=$((i + 1))
    printf 'Filtering content: %d%% (%d/10)\r' $((i * 10)) $i >&2
    echo "object $i" >> objects
done
printf '\ndone.\n' >&2
"""


def pull() -> int:
    with tempfile.TemporaryDirectory() as clone:
        result = subprocess.run(
            ["sh", "-c", PULL, "lfs", clone, f"{SECONDS / 10:.2f}"], capture_output=True, text=True, check=True
        )
        print(result.stderr.splitlines()[-1], flush=True)
        with open(f"{clone}/objects") as f:
            return sum(len(line) for line in f)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
model = torch.nn.GRU(32, 64, batch_first=True)
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
trace = []
for step in range(60):
    extra = torch.zeros(1)
    if step == 30 and dist.get_rank() == 0:
        extra += pull()
    x = torch.randn(8, 12, 32)
    loss = model(x)[0].pow(2).mean()
    opt.zero_grad()
    loss.backward()
    dist.all_reduce(extra)
    for p in model.parameters():
        dist.all_reduce(p.grad)
    opt.step()
    time.sleep(0.005)
    trace.append(f"{step} {loss.item():.4f} {extra.item():g}")

if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/trace.txt", "w") as f:
        f.write("\n".join(trace))
dist.barrier()
dist.destroy_process_group()
