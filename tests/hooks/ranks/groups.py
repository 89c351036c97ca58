"""A rank of two over gloo: makes groups, communicates, and waits where the test wants to see it wait.

What it has counted is printed as JSON; it goes on from each stop when the test makes the file NAME in argv[1].
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import all_reduce, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from guardrun.hooks.rank import rank
from guardrun.hooks.wire.board import Field

seen: dict[str, object] = {}
assert rank.active is not None
me = rank.active


def stop_until(name: str) -> None:
    """Make the file NAME-stops, and wait for NAME."""
    signs = Path(sys.argv[1])
    (signs / f"{name}-stops").touch()
    while not (signs / name).exists():
        time.sleep(0.01)


def note(name: str, *fields: Field) -> None:
    seen[name] = [me.words[field] for field in fields]


def timeout_of(group: dist.ProcessGroup) -> float:
    return float(group._get_backend(torch.device("cpu")).options._timeout.total_seconds())


global_rank = int(os.environ["RANK"])
if global_rank == 1:
    stop_until("init")
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
explicit = dist.new_group([0, 1], timeout=timedelta(seconds=77))
seen["timeouts"] = [timeout_of(group) for group in (dist.group.WORLD, pair, explicit)]
note("groups", Field.GROUPS, Field.INIT_SINCE_NS)

before = me.words[Field.COLLECTIVES]
tensor = torch.ones(2)
all_reduce(tensor)
dist.all_reduce(tensor, group=pair, async_op=True).wait()
dist.barrier()
objects: list[object] = [None, None]
dist.all_gather_object(objects, global_rank)  # Two collectives inside: one call.
if global_rank == 0:
    dist.send(tensor, 1)
else:
    dist.recv(tensor, 0)
ops = [dist.P2POp(dist.isend, tensor, 1 - global_rank), dist.P2POp(dist.irecv, torch.zeros(2), 1 - global_rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
seen["calls"] = me.words[Field.COLLECTIVES] - before
seen["sum"] = tensor.tolist()
seen["same"] = dist.all_reduce is distributed_c10d.all_reduce is all_reduce

try:
    dist.broadcast(tensor, 0, group=None, no_such_argument=1)
except TypeError as error:
    seen["error"] = str(error)
note("after an error", Field.COLLECTIVE_SINCE_NS)

if global_rank == 1:
    stop_until("collective")
dist.all_reduce(tensor)
if global_rank == 1:
    stop_until("wait")
dist.all_reduce(tensor, async_op=True).wait()

# From here on only DDP communicates, from C++: nothing passes our wrappers.
model = DistributedDataParallel(torch.nn.Linear(4, 4))
note("before DDP", Field.COLLECTIVES, Field.PULSES)
seen["progress before"] = me.words[Field.PROGRESS_NS]
for _ in range(250):
    model(torch.ones(2, 4)).sum().backward()
    time.sleep(0.01)
note("after DDP", Field.COLLECTIVES, Field.PULSES)
seen["progress after"] = me.words[Field.PROGRESS_NS]
seen["group_seq"] = me.words[Field.GROUP_SEQ]
dist.destroy_process_group()
time.sleep(0.1)
print(json.dumps(seen))
