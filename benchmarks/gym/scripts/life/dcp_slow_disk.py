"""torch.distributed.checkpoint: a save and then an async_save onto a disk that is slow for rank 0."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class SlowDisk(dcp.FileSystemWriter):
    def write_data(self, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 0:
            time.sleep(SECONDS / 2)
        return super().write_data(plan, planner)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(12, 9)
        optimizer.zero_grad()
        (model(x) - x.cos()).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        time.sleep(0.01)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    saving = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    model = torch.nn.Linear(9, 9)
    with torch.no_grad():
        model.weight.copy_(torch.eye(9))
        model.bias.zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    train(model, optimizer, 30)
    dcp.save(model.state_dict(), storage_writer=SlowDisk(f"{folder[0]}/first"))
    train(model, optimizer, 30)
    future = dcp.async_save(model.state_dict(), storage_writer=SlowDisk(f"{folder[0]}/second"), process_group=saving)
    train(model, optimizer, 30)
    future.result()
    saved = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load(saved, storage_reader=dcp.FileSystemReader(f"{folder[0]}/second"))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
        os.makedirs("out", exist_ok=True)
        with open("out/saved.json", "w") as file:
            json.dump([round(v, 3) for v in saved["weight"].diagonal().tolist()], file)
    train(model, optimizer, 10)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
