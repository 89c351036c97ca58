"""Rank 0 reads samples from a named pipe that a shell script feeds a line at a time; every rank gets each line."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LINES = 3

FEEDER = f"""
exec > "$1"
for i in $(seq 30); do echo "$i"; done
for i in $(seq {LINES}); do sleep {SECONDS / LINES:.2f}; echo "$((i * 7))"; done
for i in $(seq 30); do echo "$((50 - i))"; done
"""

dist.init_process_group("gloo")
torch.set_num_threads(1)
leader = dist.get_rank() == 0
w = torch.zeros(256, 256)
seen = []

if leader:
    folder = tempfile.TemporaryDirectory()
    fifo = os.path.join(folder.name, "samples")
    os.mkfifo(fifo)
    feeder = subprocess.Popen(["sh", "-c", FEEDER, "feeder", fifo])
    stream = open(fifo)  # noqa: SIM115

while True:
    sample = torch.tensor([float(stream.readline() or "nan") if leader else 0.0])
    dist.broadcast(sample, src=0)
    if sample.isnan():
        break
    target = torch.eye(256) * sample
    w += 0.1 * (target - w)
    dist.all_reduce(w)
    w /= dist.get_world_size()
    seen.append(f"{sample.item():g} {w.trace().item():.2f}")
    time.sleep(0.01)

if leader:
    stream.close()
    feeder.wait()
    folder.cleanup()
    os.makedirs("out", exist_ok=True)
    with open("out/seen.txt", "w") as f:
        f.write("\n".join(seen))
dist.barrier()
dist.destroy_process_group()
