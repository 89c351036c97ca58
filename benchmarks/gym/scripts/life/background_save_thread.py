"""Rank 0 saves snapshots in a background thread; before the next one it waits until the slow save has ended."""

from __future__ import annotations

import copy
import os
import threading
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Saver:
    def __init__(self) -> None:
        self.thread: threading.Thread | None = None

    def save(self, state: dict[str, torch.Tensor], name: str) -> None:
        self.finish()
        self.thread = threading.Thread(target=self._write, args=(copy.deepcopy(state), name))
        self.thread.start()

    def _write(self, state: dict[str, torch.Tensor], name: str) -> None:
        os.makedirs("out", exist_ok=True)
        with open(f"out/{name}.txt", "w") as file:
            for key, value in state.items():
                for number in value.flatten().tolist():
                    print(key, f"{number:.4f}", file=file, flush=True)
                    time.sleep(SECONDS / 3 / 12)

    def finish(self) -> None:
        if self.thread is not None:
            self.thread.join()
            self.thread = None


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(77)
model = torch.nn.Linear(3, 3)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
saver = Saver()
for step in range(1, 91):
    x = torch.randn(10, 3)
    opt.zero_grad()
    (model(x) - x.roll(1, 1)).square().sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    opt.step()
    if rank == 0 and step % 30 == 0:
        saver.save(model.state_dict(), f"step{step}")
saver.finish()
dist.barrier()
dist.destroy_process_group()
