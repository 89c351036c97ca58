"""Rank 0 waits for a slow mount, and leaves a child behind that uploads for two seconds after the script's end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
UPLOAD = """
import shutil, sys, time
time.sleep(2)
shutil.rmtree(sys.argv[1])
"""


def steps(w: torch.Tensor, n: int) -> None:
    for _ in range(n):
        g = torch.randn(200, 200) * 0.01 + w
        dist.all_reduce(g)
        w.sub_(g, alpha=0.05)
        time.sleep(0.01)


dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(1 + dist.get_rank())
w = torch.ones(200, 200)
steps(w, 30)

if dist.get_rank() == 0:
    bucket = tempfile.mkdtemp(prefix="bucket-")
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({SECONDS})"], check=True)
dist.barrier()

steps(w, 30)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    torch.save({"w": w}, "out/model.pt")
    shutil.copy("out/model.pt", bucket)
    subprocess.Popen(
        [sys.executable, "-c", UPLOAD, bucket],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
dist.barrier()
dist.destroy_process_group()
