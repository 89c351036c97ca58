"""Record flight recorder dumps of the installed torch over gloo, as its worker server gives them.

    python tests/data/recorder/record.py

Each scenario is a job of a few ranks. A rank that comes to its end, or waits in vain, is dumped by its own thread.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).parent
DUMP_AFTER_S = 4.0


def calls(rank: int, world: int) -> None:
    """Every kind of call, each completed."""
    import torch
    import torch.distributed as dist

    tensor = torch.ones(4, 3)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    dist.broadcast(tensor.double(), 0)
    dist.reduce(tensor, 0)
    dist.all_gather([torch.empty(4, 3) for _ in range(world)], tensor)
    dist.all_gather_into_tensor(torch.empty(4 * world, 3), tensor)
    dist.reduce_scatter(torch.empty(4, 3), [tensor] * world)
    dist.reduce_scatter_tensor(torch.empty(4, 3), torch.ones(4 * world, 3))
    dist.all_to_all_single(torch.empty(4, 3), tensor)
    dist.all_to_all([torch.empty(2)] * world, [torch.ones(2)] * world)
    dist.gather(tensor, [torch.empty(4, 3) for _ in range(world)] if rank == 0 else None)
    dist.scatter(tensor, [torch.ones(4, 3)] * world if rank == 0 else None)
    dist.barrier()
    dist.all_gather_object([None] * world, {"rank": rank})
    dist.broadcast_object_list([1], 0)
    dist.monitored_barrier()
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    pair = [dist.P2POp(dist.isend, tensor, 1 - rank), dist.P2POp(dist.irecv, torch.empty(4, 3), 1 - rank)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    with dist._coalescing_manager():
        dist.all_reduce(tensor)
        dist.all_reduce(torch.ones(5))


def skip(rank: int, world: int) -> None:
    """Rank 1 leaves out an all_reduce, and sleeps."""
    import torch
    import torch.distributed as dist

    for _ in range(3):
        dist.all_reduce(torch.ones(8))
    if rank == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(8))


def mismatch(rank: int, world: int) -> None:
    """The ranks are in different operations."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(8))
    if rank == 1:
        dist.broadcast(torch.ones(8), 0)
        dist.barrier()
    dist.all_reduce(torch.ones(8))
    dist.barrier()


def subgroups(rank: int, world: int) -> None:
    """Four ranks in two pairs one way, two the other; rank 3 never comes to its pair's second all_reduce."""
    import torch
    import torch.distributed as dist

    rows = [dist.new_group(ranks, group_desc=f"row_{ranks[0] // 2}") for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks, group_desc=f"column_{ranks[0]}") for ranks in ([0, 2], [1, 3])]
    row, column = rows[rank // 2], columns[rank % 2]
    dist.all_reduce(torch.ones(4), group=row)
    dist.all_reduce(torch.ones(6), group=column)
    if rank == 3:
        time.sleep(60)
    dist.all_reduce(torch.ones(4), group=row)
    dist.all_reduce(torch.ones(6), group=column)


def pending(rank: int, world: int) -> None:
    """DDP's own collectives, then two asynchronous all_reduces that only rank 0 issues."""
    import torch
    import torch.distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    if rank == 1:
        time.sleep(60)
    works = [dist.all_reduce(torch.ones(5), async_op=True) for _ in range(2)]
    works[1].wait()


SCENARIOS: dict[str, tuple[Callable[[int, int], None], int]] = {
    "calls": (calls, 2),
    "skip": (skip, 2),
    "mismatch": (mismatch, 2),
    "subgroups": (subgroups, 4),
    "pending": (pending, 2),
}


def run_rank(name: str, rank: int, port: int) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace_json

    warnings.simplefilter("ignore")
    run, world = SCENARIOS[name]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)

    def dump() -> None:
        time.sleep(DUMP_AFTER_S)
        trace = json.loads(_dump_fr_trace_json())
        (FOLDER / f"gloo-{name}-{rank}.json").write_text(json.dumps(trace, indent=1, sort_keys=True) + "\n")
        time.sleep(1.0)  # The others dump what they still wait for.
        os._exit(0)

    thread = threading.Thread(target=dump)
    thread.start()
    run(rank, world)
    thread.join()


def main() -> None:
    from multiprocessing import get_context

    context = get_context("spawn")
    for name, (_, world) in SCENARIOS.items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = [context.Process(target=run_rank, args=(name, rank, port)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.stdout.write(f"{name}: {[process.exitcode for process in ranks]}\n")


if __name__ == "__main__":
    main()
