"""Rank 0 watches a spool directory until somebody drops the next job into it; the others wait for its broadcast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
JOBS = 3
SUBMITTER = """
import os, sys, time
spool, jobs, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
for i in range(jobs):
    time.sleep(pause)
    with open(f"{spool}/.job", "w") as f:
        f.write('{"lr": %g, "steps": 20}' % (0.1 / (i + 1)))
    os.rename(f"{spool}/.job", f"{spool}/{i}.job")
"""


def next_job(spool: Path, number: int) -> dict:
    path = spool / f"{number}.job"
    while not path.exists():
        time.sleep(0.25)
    return json.loads(path.read_text())


def run_job(job: dict, w: torch.Tensor) -> float:
    opt = torch.optim.SGD([w], lr=job["lr"])
    for _ in range(job["steps"]):
        loss = ((torch.randn(512, 100) @ w - 1.0) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(w.grad, op=dist.ReduceOp.SUM)
        opt.step()
        time.sleep(0.01)
    return round(loss.item(), 3)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(100 + dist.get_rank())
    w = torch.zeros(100, 8, requires_grad=True)
    losses = [run_job({"lr": 0.05, "steps": 25}, w)]
    with tempfile.TemporaryDirectory() as tmp:
        if dist.get_rank() == 0:
            submitter = subprocess.Popen([sys.executable, "-c", SUBMITTER, tmp, str(JOBS), str(SECONDS / JOBS)])
        for number in range(JOBS):
            box = [next_job(Path(tmp), number) if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(box, src=0)
            losses.append(run_job(box[0], w))
        if dist.get_rank() == 0:
            submitter.wait()
            os.makedirs("out", exist_ok=True)
            Path("out/losses.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()
