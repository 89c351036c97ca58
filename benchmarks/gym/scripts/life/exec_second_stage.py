"""After the first stage each rank replaces itself by os.execv; rank 0 starts its stage two slowly."""

from __future__ import annotations

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def connect(stage: str) -> None:
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=rank == 0 and not agent)
    dist.init_process_group("gloo", store=dist.PrefixStore(stage, store), rank=rank, world_size=size)


def train(weight: torch.Tensor, steps: int) -> None:
    for step in range(steps):
        gradient = torch.tanh(weight - step / steps + dist.get_rank())
        dist.all_reduce(gradient)
        weight -= 0.05 * gradient
        time.sleep(0.01)


torch.set_num_threads(1)
if len(sys.argv) == 1:
    connect("one")
    weight = torch.linspace(0, 1, 5)
    train(weight, 40)
    dist.barrier()
    dist.destroy_process_group()
    number, path = tempfile.mkstemp(suffix=".pt")
    os.close(number)
    torch.save(weight, path)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, __file__, path])

weight = torch.load(sys.argv[1])
os.remove(sys.argv[1])
if os.environ["RANK"] == "0":
    time.sleep(SECONDS / 2)
connect("two")
train(weight, 20)
if dist.get_rank() == 0:
    time.sleep(SECONDS / 2)
train(weight, 20)
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/weight.txt", "w") as file:
        file.write(" ".join(f"{w:.4f}" for w in weight.tolist()))
dist.barrier()
dist.destroy_process_group()
