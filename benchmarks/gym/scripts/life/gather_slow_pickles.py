"""all_gather_object of objects whose __getstate__ on rank 0 (and whose __setstate__ everywhere) is slow."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Replay:
    """A replay buffer that packs itself, entry by entry."""

    def __init__(self, owner: int, size: int) -> None:
        self.owner = owner
        self.entries = [owner * 1000 + i for i in range(size)]

    def __getstate__(self) -> dict:
        if self.owner == 0:
            for _ in self.entries:
                time.sleep(SECONDS * 0.8 / len(self.entries))
        return {"owner": self.owner, "packed": ",".join(map(str, self.entries))}

    def __setstate__(self, state: dict) -> None:
        time.sleep(SECONDS * 0.2 / 2)
        self.owner = state["owner"]
        self.entries = [int(entry) for entry in state["packed"].split(",")]


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(9)
value = torch.nn.Linear(3, 1)
optimizer = torch.optim.RMSprop(value.parameters(), lr=1e-3)


def fit(entries: list[int], steps: int) -> None:
    for number in range(steps):
        seed = entries[number % len(entries)]
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        value(x).square().mean().backward()
        for p in value.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()


mine = Replay(dist.get_rank(), 40)
fit(mine.entries, 30)
everyone: list[Replay | None] = [None] * dist.get_world_size()
dist.all_gather_object(everyone, mine)
fit([entry for replay in everyone for entry in replay.entries], 30)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/value.json", "w") as file:
        json.dump([round(v, 4) for v in value.weight.flatten().tolist()], file)
dist.barrier()
dist.destroy_process_group()
