"""One of two ranks that train over gloo in step; argv: how, steps, the slow rank, its lag, and whether to pause.

How: ddp, accumulate (gradients over three batches), buffers (batch norm), fsdp (fully_shard), calls (by hand).
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

HOW, STEPS, SLOW, LAG_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
ODD = {12, 13} if len(sys.argv) > 5 else set()
"""Steps in which rank 0 does something long."""

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers: list[torch.nn.Module] = [torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)]
if HOW == "buffers":
    layers.insert(1, torch.nn.BatchNorm1d(16))
model: torch.nn.Module = torch.nn.Sequential(*layers)
if HOW == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in (*layers, model):
        fully_shard(layer, mesh=mesh)
elif HOW != "calls":
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)

for step in range(STEPS):
    if rank == SLOW:
        time.sleep(LAG_S)
    if rank == 0 and step in ODD:
        time.sleep(3.0)
    time.sleep(0.02)
    optimizer.zero_grad()
    if HOW == "accumulate":
        for _ in range(2):
            with model.no_sync():
                model(torch.randn(4, 16)).sum().backward()
    model(torch.randn(4, 16)).sum().backward()
    if HOW == "calls":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, async_op=True).wait()
    optimizer.step()

dist.destroy_process_group()
