"""Rank 0 maps a large corpus file into memory and scans it byte by byte; the others wait for the counts."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
LINE = b"all work and no play makes jack a dull boy\n"


def scan(corpus: mmap.mmap, seconds: float) -> dict[str, int]:
    end = time.monotonic() + seconds
    counts = {"z": 0, "work": 0}
    for _ in range(1000):
        line = corpus.readline()
        counts["z"] += line.count(b"z")
        counts["work"] += line.count(b"work")
    while time.monotonic() < end:
        assert corpus.find(b"no such words") == -1
        histogram = [0] * 256
        for byte in corpus[: 1 << 20]:
            histogram[byte] += 1
    return counts


class Job:
    def __init__(self) -> None:
        torch.manual_seed(50)
        self.model = torch.nn.Conv1d(4, 8, 5)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def steps(self) -> float:
        for _ in range(30):
            loss = self.model(torch.randn(16, 4, 64)).square().mean()
            self.opt.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
            self.opt.step()
        return round(loss.item(), 3)

    def count(self) -> dict[str, int] | None:
        if dist.get_rank() > 0:
            return None
        with tempfile.TemporaryFile() as f:
            for _ in range(300):
                f.write(LINE * (10_000 if SECONDS > 10 else 1_000))
            f.flush()
            with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as corpus:
                counts = scan(corpus, SECONDS)
        return counts


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    job = Job()
    result = {"first": job.steps()}
    box = [job.count()]
    dist.broadcast_object_list(box, src=0)
    result.update(box[0], second=job.steps())
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/counts.json", "w") as f:
            json.dump(result, f)
    dist.barrier()
    dist.destroy_process_group()
