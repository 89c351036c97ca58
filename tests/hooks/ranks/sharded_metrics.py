"""One of two ranks that train the same model in parallel in several ways; prints [loss, norm] of each step by way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grad_norm_

STEPS = 4
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))


def ddp(model: torch.nn.Sequential) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp1(model: torch.nn.Sequential) -> torch.nn.Module:
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fsdp2(model: torch.nn.Sequential) -> torch.nn.Module:
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return model


def tensor_parallel(model: torch.nn.Sequential) -> torch.nn.Module:
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


def train(shard: Callable[[torch.nn.Sequential], torch.nn.Module]) -> list[list[Any]]:
    torch.manual_seed(0)
    model = shard(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    told = []
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if isinstance(model, FullyShardedDataParallel):
            norm = model.clip_grad_norm_(1.0)
        else:
            norm = clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told.append([loss.item(), norm.item()])
    return told


print(json.dumps([train(shard) for shard in (ddp, fsdp1, fsdp2, tensor_parallel)]))
dist.destroy_process_group()
