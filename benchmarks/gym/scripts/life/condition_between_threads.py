"""The loader thread of rank 0 delivers nothing for a while; the trainer waits on its Condition with timeouts."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Prefetcher:
    def __init__(self, count: int, stall_at: int, stall: float) -> None:
        self.count, self.stall_at, self.stall = count, stall_at, stall
        self.ready: deque[torch.Tensor] = deque()
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self.load, name="prefetch", daemon=True)
        self.thread.start()

    def load(self) -> None:
        generator = torch.Generator().manual_seed(31)
        for i in range(self.count):
            if i == self.stall_at:
                time.sleep(self.stall)
            batch = torch.rand(128, 96, generator=generator)
            with self.changed:
                self.changed.wait_for(lambda: len(self.ready) < 4)
                self.ready.append(batch)
                self.changed.notify_all()

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.count):
            with self.changed:
                while not self.ready:
                    self.changed.wait(timeout=0.2)
                batch = self.ready.popleft()
                self.changed.notify_all()
            yield batch
        self.thread.join()


torch.set_num_threads(1)
dist.init_process_group("gloo")
batches = Prefetcher(count=64, stall_at=32, stall=SECONDS if dist.get_rank() == 0 else 0.0)
torch.manual_seed(0)
autoencoder = torch.nn.Sequential(torch.nn.Linear(96, 12), torch.nn.Linear(12, 96))
optimizer = torch.optim.Adagrad(autoencoder.parameters())
curve = []
for batch in batches:
    loss = torch.nn.functional.mse_loss(autoencoder(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    for p in autoencoder.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    curve.append(round(loss.item(), 4))
    time.sleep(0.005)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/curve.json", "w") as f:
        json.dump(curve, f)
dist.barrier()
dist.destroy_process_group()
