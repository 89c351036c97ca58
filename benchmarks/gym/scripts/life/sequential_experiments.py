"""Three experiments one after the other, each with a process group of its own, and a pause between them."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
RATES = [0.3, 0.1, 0.03]


def connect() -> dist.TCPStore:
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=not agent and os.environ["RANK"] == "0",
    )


def experiment(rate: float) -> float:
    torch.manual_seed(1)
    model = torch.nn.Linear(7, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(30):
        x = torch.randn(14, 7)
        loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return round(loss.item(), 3)


def main() -> None:
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = connect()
    results = {}
    for number, rate in enumerate(RATES):
        if number:
            time.sleep(SECONDS / (len(RATES) - 1))
        own = dist.PrefixStore(f"experiment{number}", store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size)
        results[rate] = experiment(rate)
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/results.json", "w") as file:
            json.dump(results, file)


if __name__ == "__main__":
    main()
