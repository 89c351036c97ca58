"""Every public collective under torch.compile, by two ranks: prints results and what dynamo made of them.

Runs with hooks and without; both must say the same. argv: a file for the store, then choices: a backend (`none`: not
compiled), perhaps with `whole` (fullgraph) and `p2p` (point to point compiled as well), by `-`; with `few` it is
the backend of FEW, and the rest's is `eager`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor
import torch.distributed as dist
from torch._dynamo.utils import counters

Function = Callable[[torch.Tensor], Any]
RANK = int(os.environ["RANK"])
OTHER = 1 - RANK
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=RANK, world_size=2)
group = dist.group.WORLD


def _empties(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(x), torch.empty_like(x)]


def reduced(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x * 2


def reduced_by(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=group)
    return x * 2


def reduced_by_position(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, dist.ReduceOp.SUM)
    return x * 2


def reduced_async(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, async_op=True).wait()
    return x * 2


def scattered(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, x)
    return out * 2


def scattered_by(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, x, op=dist.ReduceOp.SUM)
    return out * 2


def scattered_list(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2)
    dist.reduce_scatter(out, list(x.chunk(2)), op=dist.ReduceOp.SUM)
    return out * 2


def gathered_into(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_gather_into_tensor(out, x[:2])
    return out * 2


def gathered_single(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_gather_single(out, x[:2])
    return out * 2


def scattered_single(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(2)
    dist.reduce_scatter_single(out, x)
    return out * 2


def reduced_coalesced(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce_coalesced([x])
    return x * 2


def gathered_coalesced(x: torch.Tensor) -> torch.Tensor:
    parts = _empties(x)
    dist.all_gather_coalesced([parts[:1], parts[1:]], [x])
    return parts[0] * 2


def gathered(x: torch.Tensor) -> torch.Tensor:
    parts = _empties(x)
    dist.all_gather(parts, x)
    return parts[0] * 2


def exchanged(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out * 2


def exchanged_lists(x: torch.Tensor) -> torch.Tensor:
    out = [torch.empty(2), torch.empty(2)]
    dist.all_to_all(out, list(x.chunk(2)))
    return out[0] + out[1]


def broadcast(x: torch.Tensor) -> torch.Tensor:
    dist.broadcast(x, 0)
    return x * 2


def reduced_to_one(x: torch.Tensor) -> torch.Tensor:
    dist.reduce(x, 0, op=dist.ReduceOp.SUM)
    return x * 2 if RANK == 0 else x * 0


def gathered_to_one(x: torch.Tensor) -> torch.Tensor:
    dist.gather(x, _empties(x) if RANK == 0 else None)
    return x * 2


def given(x: torch.Tensor) -> torch.Tensor:
    dist.scatter(x, [x.clone(), x.clone()] if RANK == 0 else None)
    return x * 2


def barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x * 2


def sent(x: torch.Tensor) -> torch.Tensor:
    if RANK == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
    return x * 2


def sent_async(x: torch.Tensor) -> torch.Tensor:
    work = dist.isend(x, 1) if RANK == 0 else dist.irecv(x, 0)
    work.wait()
    return x * 2


def sent_at_once(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, OTHER), dist.P2POp(dist.irecv, out, OTHER)]):
        work.wait()
    return out * 2


def gathered_objects(x: torch.Tensor) -> torch.Tensor:
    objects = [None, None]
    dist.all_gather_object(objects, 2 + RANK)
    return x * objects[1]


def gathered_objects_to_one(x: torch.Tensor) -> torch.Tensor:
    objects = [None, None] if RANK == 0 else None
    dist.gather_object(2 + RANK, objects)
    return x * (objects[1] if objects else 2)


def broadcast_objects(x: torch.Tensor) -> torch.Tensor:
    objects = [2 + RANK]
    dist.broadcast_object_list(objects, 0)
    return x * objects[0]


def given_objects(x: torch.Tensor) -> torch.Tensor:
    objects = [None]
    dist.scatter_object_list(objects, [2, 3] if RANK == 0 else None)
    return x * objects[0]


def sent_objects(x: torch.Tensor) -> torch.Tensor:
    objects = [2 + RANK]
    if RANK == 0:
        dist.send_object_list(objects, 1)
    else:
        dist.recv_object_list(objects, 0)
    return x * objects[0]


def monitored(x: torch.Tensor) -> torch.Tensor:
    dist.monitored_barrier()
    return x * 2


FUNCTIONS: tuple[Function, ...] = (
    reduced, reduced_by, reduced_by_position, reduced_async, reduced_coalesced, scattered, scattered_by, scattered_list,
    scattered_single, gathered_into, gathered, gathered_single, gathered_coalesced, exchanged, exchanged_lists,
    broadcast, reduced_to_one, gathered_to_one, given, barrier, monitored, sent, sent_async, sent_at_once,
    gathered_objects, gathered_objects_to_one, broadcast_objects, given_objects, sent_objects,
)  # fmt: skip
FEW = frozenset((reduced, gathered_into, sent_async, sent_at_once))


def outcome(function: Function, backend: str, is_whole: bool) -> list[Any]:
    torch._dynamo.reset()
    counters.clear()
    compiled = function if backend == "none" else torch.compile(function, backend=backend, fullgraph=is_whole)
    try:
        results = [compiled(torch.arange(4.0) + RANK).tolist() for _ in range(2)]
    except Exception as error:
        return [type(error).__name__, str(error).splitlines()[0]]
    return [results, sum(counters["graph_break"].values()), dict(counters["stats"]), dict(counters["frames"])]


# Kernels as where a CPU has no vectors: to find out which it has takes six compilations. No header is prepared for
# two kernels, and no pool of processes.
inductor.cpp.vec_isa_ok, inductor.cpp_cache_precompile_headers, inductor.compile_threads = False, False, 1
seen = {}
for choice in sys.argv[2:]:
    backend, *more = choice.split("-")
    torch._dynamo.config.enable_p2p_compilation = "p2p" in more
    for function in FUNCTIONS:
        chosen = "eager" if "few" in more and function not in FEW else backend
        seen[f"{function.__name__} {choice}"] = outcome(function, chosen, "whole" in more)
        dist.barrier()
dist.destroy_process_group()
print(json.dumps(seen))
