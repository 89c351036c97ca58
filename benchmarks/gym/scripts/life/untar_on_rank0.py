"""Rank 0 unpacks the data set with tar off a slow disk while the others wait for it at a barrier."""
# ranks: 4

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
SLOW_DISK = """
import os, sys, time
data = open(sys.argv[1], "rb").read()
for i in range(0, len(data), len(data) // 40 + 1):
    os.write(1, data[i : i + len(data) // 40 + 1])
    time.sleep(float(sys.argv[2]) / 40)
"""


def unpack(folder: Path) -> list[int]:
    archive = folder / "data.tar"
    with tarfile.open(archive, "w") as tar:
        for i in range(20):
            info = tarfile.TarInfo(f"shard{i:02}.bin")
            info.size = 5000
            tar.addfile(info, io.BytesIO(bytes((i * k) % 256 for k in range(info.size))))
    disk = subprocess.Popen([sys.executable, "-c", SLOW_DISK, archive, str(SECONDS)], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], stdin=disk.stdout, check=True)
    disk.stdout.close()
    disk.wait()
    return [sum(path.read_bytes()) for path in sorted(folder.glob("*.bin"))]


def train(model: torch.nn.Linear, scale: float) -> float:
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(25):
        opt.zero_grad()
        loss = (model(torch.sin(torch.arange(640.0) * scale + step).view(-1, 64)) ** 2).mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        opt.step()
        time.sleep(0.01)
    return loss.item()


torch.set_num_threads(1)
torch.manual_seed(5)
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
losses = [train(model, 1.0)]
sums = torch.zeros(20)
if dist.get_rank() == 0:
    with tempfile.TemporaryDirectory() as name:
        sums = torch.tensor(unpack(Path(name)), dtype=torch.float32)
dist.barrier()
dist.broadcast(sums, 0)
losses.append(train(model, sums.mean().item() / 1e6))
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    Path("out/result.txt").write_text(f"{sums.long().tolist()}\n{losses[0]:.4f} {losses[1]:.4f}\n")
dist.barrier()
dist.destroy_process_group()
