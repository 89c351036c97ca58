"""A backup holds the experiment database; rank 0's insert sits in sqlite's busy timeout until it is through."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
BACKUP = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN EXCLUSIVE")
print("backing up", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("COMMIT")
db.close()
"""


def log_metrics(path: str, losses: list[float]) -> int:
    db = sqlite3.connect(path, timeout=600)
    with db:
        db.executemany("INSERT INTO metrics VALUES (?, ?)", enumerate(losses))
    (rows,) = db.execute("SELECT COUNT(*) FROM metrics").fetchone()
    db.close()
    return rows


def training_steps(w: torch.Tensor, count: int) -> list[float]:
    losses = []
    for _ in range(count):
        x = torch.randn(1024, 64)
        error = x @ w - x.sum(1, keepdim=True)
        grad = x.T @ error / len(x)
        dist.all_reduce(grad)
        w -= 0.05 * grad
        losses.append(round(error.square().mean().item(), 3))
        time.sleep(0.01)
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    w = torch.zeros(64, 1)
    losses = training_steps(w, 30)
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.db")
            db = sqlite3.connect(path)
            db.execute("CREATE TABLE metrics (step INTEGER, loss REAL)")
            db.commit()
            db.close()
            command = [sys.executable, "-c", BACKUP, path, str(SECONDS)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as backup:
                backup.stdout.readline()
                rows = log_metrics(path, losses)
    losses += training_steps(w, 30)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/metrics.csv", "w") as f:
            print(f"rows in the database,{rows}", *losses, sep="\n", file=f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
