"""One of two ranks that train in several ways, with a batch of rank 1's that is far larger than all others.

Prints for each way, as JSON, the steps that changed no parameter of this rank's, and a digest of all at the end.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

warnings.simplefilter("ignore", FutureWarning)
STEPS, LARGE = 100, 90
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANK = dist.get_rank()
told = {}


def make() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def batch(step: int) -> torch.Tensor:
    torch.manual_seed(100 * step + RANK)
    return torch.randn(4, 8) * (100 if step == LARGE and RANK == 1 else 1)


def local(model: nn.Module) -> list[torch.Tensor]:
    return [getattr(each, "_local_tensor", each).detach() for each in model.parameters()]


def play(way: str, model: nn.Module, clip: Callable[[], object] = lambda: None) -> None:
    optimizer = SGD(model.parameters(), 1e-3)
    same = []
    for step in range(STEPS):
        loss = model(batch(step)).square().mean()
        loss.backward()
        clip()
        before = [each.clone() for each in local(model)]
        optimizer.step()
        optimizer.zero_grad()
        if all(map(torch.equal, before, local(model))):
            same.append(step)
    bits = b"".join(each.numpy().tobytes() for each in local(model))
    told[way] = {"same": same, "digest": hashlib.sha256(bits).hexdigest()}


play("plain", DistributedDataParallel(make()))
ddp = DistributedDataParallel(make())
play("clipped", ddp, lambda: clip_grad_norm_(ddp.parameters(), 0.1))
fsdp = FullyShardedDataParallel(make(), device_id=torch.device("cpu"))
play("fsdp1", fsdp, lambda: fsdp.clip_grad_norm_(0.1))
mesh = init_device_mesh("cpu", (2,))
sharded = fully_shard(make(), mesh=mesh)
play("fsdp2", sharded, lambda: clip_grad_norm_(sharded.parameters(), 0.1))
print(json.dumps(told))
dist.destroy_process_group()
