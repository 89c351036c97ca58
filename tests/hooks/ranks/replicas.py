"""One of two ranks that hold the same models, each trained in another way; prints what was checked of each.

Arguments: the ways in which rank 1 flips a bit after step 55.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from guardrun.hooks.patches.sample_orders import SampleOrders
from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.wire.checksums_page import checksums_name
from guardrun.supervisor.collect.ranks.checksums import ChecksumsReader
from guardrun.supervisor.engine.model.events import ReplicaCheck

FLIPS = sys.argv[1:]
STEPS = 62
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()
generator = torch.Generator()


def net() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def plain() -> tuple[Any, Any]:
    model = DistributedDataParallel(net())
    return model, adam(model)


def unused() -> tuple[Any, Any]:
    """A layer that no step uses, and one that does not learn."""
    inner = net()
    inner.extra = torch.nn.Linear(2, 2)
    inner.forward = lambda x: inner[2](inner[1](inner[0](x)))
    inner[0].requires_grad_(False)
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    return model, adam(model)


def static() -> tuple[Any, Any]:
    model = DistributedDataParallel(net(), static_graph=True, gradient_as_bucket_view=True)
    return model, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def ignored() -> tuple[Any, Any]:
    """DDP leaves one parameter to each rank: its own."""
    inner = net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, ["2.bias"])
    model = DistributedDataParallel(inner)
    return model, adam(model)


def tied() -> tuple[Any, Any]:
    """One tensor under two names, in half the precision and another layout."""
    torch.manual_seed(3)
    first = torch.nn.Linear(8, 8).bfloat16()
    second = torch.nn.Linear(8, 8).bfloat16()
    second.weight = first.weight = torch.nn.Parameter(first.weight.detach().t())
    model = DistributedDataParallel(torch.nn.Sequential(first, second))
    return model, adam(model)


def zero() -> tuple[Any, Any]:
    model = DistributedDataParallel(net())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)


def hybrid() -> tuple[Any, Any]:
    """Replicated on one mesh dimension, sharded on the other."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))
    return model, adam(model)


def sharded() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model, adam(model)


def train(make: Callable[[], tuple[Any, Any]], *, flips: bool = False, joins: bool = False) -> bytes:
    """STEPS steps; what the parameters are after them."""
    model, optimizer = make()
    generator.manual_seed(RANK)
    dtype = next(model.parameters()).dtype
    with Join([model]) if joins else contextlib.nullcontext():
        for step in range(1, STEPS + 1 - 3 * RANK * joins):
            optimizer.zero_grad()
            for micro in range(2):
                x = torch.randn(4, 8, generator=generator).to(dtype)
                held = micro == 0 and not joins and make not in (static, hybrid, sharded)
                with model.no_sync() if held else contextlib.nullcontext():
                    model(x).float().square().mean().backward()
            optimizer.step()
            if step == 55 and flips and RANK == 1:
                weight = next(model.parameters())
                getattr(weight, "_local_tensor", weight).data.view(torch.int32)[0, 0] ^= 1 << 9
    tensors = [getattr(one, "_local_tensor", one).detach() for one in model.parameters()]
    return b"".join(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist()) for tensor in tensors)


active = ranks.active
assert active is not None and active.checksums is not None
reader = ChecksumsReader(Path(active.sockets) / checksums_name(0, RANK))


def read() -> list[ReplicaCheck]:
    """What was checked since the last time."""
    reader.read(0)
    return reader.take_checks()


found, groups = {}, {}
for way in (plain, unused, static, ignored, tied, zero, hybrid, sharded):
    samples = active.samples = SampleOrders(active)
    train(way, flips=way.__name__ in FLIPS)
    found[way.__name__] = read()
    groups[way.__name__] = samples._group
active.samples = None
train(plain, joins=True)
found["joined"] = read()
watched = train(plain), torch.random.get_rng_state().tolist()
found["watched"] = read()
active.checksums = None
alone = train(plain), torch.random.get_rng_state().tolist()
sys.stdout.write(msgspec.json.encode({"is_same": watched == alone, "found": found, "groups": groups}).decode())
sys.stdout.flush()
dist.destroy_process_group()
