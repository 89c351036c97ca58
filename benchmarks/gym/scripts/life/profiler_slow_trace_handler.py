"""torch.profiler on rank 0: the trace handler analyses each trace for long while the other waits."""

from __future__ import annotations

import contextlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
CYCLES = 3
found: list[str] = []


def analyse(profiler: profile) -> None:
    names = {event.key for event in profiler.key_averages()}
    found.append("addmm" if "aten::addmm" in names else "nothing")
    time.sleep(SECONDS / CYCLES)


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(3)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
plan = schedule(wait=15, warmup=2, active=3, repeat=CYCLES)
profiling = (
    profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=analyse)
    if dist.get_rank() == 0
    else contextlib.nullcontext()
)
with profiling as profiler:
    for _ in range(90):
        x = torch.randn(8, 32)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        if profiler is not None:
            profiler.step()
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/profile.json", "w") as file:
        json.dump({"found": found, "loss": round(loss.item(), 4)}, file)
dist.barrier()
dist.destroy_process_group()
