"""A health thread all-reduces on a group of its own all the time while the main thread of rank 0 is slow."""

from __future__ import annotations

import json
import os
import threading
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Health(threading.Thread):
    """Beats until every rank has asked it to stop."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(name="health")
        self.group = group
        self.done = threading.Event()

    def run(self) -> None:
        while True:
            votes = torch.tensor([int(self.done.is_set())])
            dist.all_reduce(votes, group=self.group)
            if votes.item() == dist.get_world_size():
                return
            time.sleep(0.1)


def train(model: torch.nn.Module, opt: torch.optim.Optimizer, steps: int) -> float:
    for _ in range(steps):
        x = torch.randn(20, 6)
        loss = torch.nn.functional.huber_loss(model(x), x.abs())
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        time.sleep(0.005)
    return loss.item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    health = Health(dist.new_group())
    health.start()
    torch.manual_seed(15)
    model = torch.nn.Linear(6, 6)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    before = train(model, opt, 30)
    if dist.get_rank() == 0:
        time.sleep(SECONDS)
    after = train(model, opt, 30)
    health.done.set()
    health.join()
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/loss.json", "w") as file:
            json.dump({"before": round(before, 3), "after": round(after, 3)}, file)
    dist.barrier()
    dist.destroy_process_group()
