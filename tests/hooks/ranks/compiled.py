"""Collectives and optimizers under torch.compile, in a world of one: prints results and what dynamo made of them.

Runs with hooks and without; both must say the same.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed import all_reduce

seen: dict[str, object] = {}


def record(name: str, function: Callable[..., Any], *args: torch.Tensor, fullgraph: bool = False) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, backend="eager", fullgraph=fullgraph)
    for _ in range(3):
        result = compiled(*[argument.clone() for argument in args])
    seen[name] = [
        result.tolist() if isinstance(result, torch.Tensor) else repr(result),
        dict(counters["stats"]),
        len(counters["graph_break"]),
    ]


def reduced(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def reduced_by_name(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    all_reduce(y)
    return y + 1


def gathered(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.zeros(4)]
    dist.all_gather(parts, x * 2)
    return parts[0] + 1


def gathered_into(x: torch.Tensor) -> torch.Tensor:
    whole = torch.zeros(4)
    dist.all_gather_into_tensor(whole, x * 2)
    return whole + 1


def reduced_async(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1


def broadcast(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.broadcast(y, 0)
    return y + 1


def barrier(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.barrier()
    return y + 1


folder = tempfile.mkdtemp()
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
x = torch.ones(4)
for function in (reduced, reduced_by_name, gathered, gathered_into):
    record(function.__name__, function, x)
    record(f"{function.__name__}, whole", function, x, fullgraph=True)
for function in (reduced_async, broadcast, barrier):
    record(function.__name__, function, x)

for kind in (torch.optim.SGD, torch.optim.AdamW):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = kind(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    record(kind.__name__, optimizer.step)
    seen[f"{kind.__name__}, weights"] = model.weight.tolist()

dist.destroy_process_group()
if os.path.exists(f"{folder}/store"):
    os.unlink(f"{folder}/store")
os.rmdir(folder)
print(json.dumps(seen, indent=1))
