"""What it costs to have modules timed (`guardctl trace`): CPU time a module, forward and backward, with and without."""

from __future__ import annotations

import os
from statistics import median
from time import thread_time_ns
from typing import Any

import torch
from torch import nn

from guardrun.hooks.examine.memory_in_use import ResidentMemory
from guardrun.hooks.examine.module_calls import ModuleCalls
from guardrun.hooks.examine.module_times import GlobalHooks
from guardrun.hooks.rank.rank import Rank

ROUNDS, STEPS = 30, 3
WIDTH, BLOCKS = 64, 100


def main() -> None:
    os.environ["RANK"] = "0"
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)])
    x = torch.randn(16, WIDTH)
    memory = ResidentMemory()
    calls = ModuleCalls(Rank({"sockets": "/nowhere"}, 0), torch, 1 << 30)
    calls.read_allocated = memory.read
    hooks = GlobalHooks(torch, calls, lambda: None)

    def step(model: Any) -> int:
        began_ns = thread_time_ns()
        model(x).sum().backward()
        return thread_time_ns() - began_ns

    without, traced = [], []
    for _ in range(ROUNDS):
        without.append(min(step(model) for _ in range(STEPS)))
        hooks.put_in()
        calls.is_on = True
        taken = []
        for number in range(STEPS):
            taken.append(step(model))
            calls.end_step(number, is_within=False)
        traced.append(min(taken))
        calls.stop(is_at_step=True)
        hooks.take_out()
        calls.rows.clear()
    memory.close()
    count = sum(1 for _ in model.modules())
    plain_us, traced_us = (median(values) / 1000 / count for values in (without, traced))
    print(f"{count} modules: {plain_us:.1f} µs each without, {traced_us:.1f} µs with: {traced_us - plain_us:.1f} more")


main()
