"""A rank of two over gloo that gets stuck in ways that its test asks for, one after the other, by files in argv[1]."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from guardrun.hooks.rank import rank

warnings.simplefilter("ignore")
signs = sys.argv[1]


def hold_the_gil() -> None:
    """Until SIGUSR1; other signals end no more than a piece of it."""
    is_over: list[int] = []
    signal.signal(signal.SIGUSR1, lambda signum, _: is_over.append(signum))
    open(os.path.join(signs, "holding"), "w").close()
    while not is_over:
        ctypes.PyDLL(None).usleep(30_000_000)


def stop_until(name: str) -> None:
    while not os.path.exists(os.path.join(signs, name)):
        time.sleep(0.01)


def reduce_in_pairs(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, group=pair)  # in pairs


dist.init_process_group("gloo")
me = dist.get_rank()
alone = [dist.new_group([each]) for each in range(2)][me]
pair = dist.new_group([0, 1], group_desc="pair")
model = DistributedDataParallel(torch.nn.Linear(3, 3))
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    reduce_in_pairs(torch.ones(4, 5))
dist.all_reduce(torch.ones(3), group=alone)
if me == 0:
    dist.send(torch.ones(7), 1)
else:
    dist.recv(torch.ones(7), 0)
dist.monitored_barrier()

# 1. Rank 1 doesn't come: first asleep, then with the GIL held.
if me == 1:
    open(os.path.join(signs, "missing"), "w").close()
    stop_until("hold")
    hold_the_gil()
    stop_until("come")
reduce_in_pairs(torch.ones(4, 5))

# 2. A receive that nobody answers, and an asynchronous one.
if me == 0:
    stop_until("send")
    dist.send(torch.ones(2), 1)
    stop_until("send again")
    dist.send(torch.ones(2), 1)
else:
    dist.recv(torch.ones(2), 0)  # waits
    dist.irecv(torch.ones(2), 0).wait()  # waits again

# 3. A reduce_scatter, which gloo carries out as two all_reduces.
if me == 1:
    stop_until("scatter")
dist.reduce_scatter(torch.ones(3), [torch.ones(3), torch.ones(3)])

# 4. The script closes the recorder's socket.
if me == 1 and rank.active is not None:
    os.close(rank.active.recorder_fd)
    open(os.path.join(signs, "closed"), "w").close()
stop_until("end")
dist.barrier()
os._exit(0)
