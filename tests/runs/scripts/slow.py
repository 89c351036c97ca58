"""A small DDP training over gloo whose ranks work for unequal times, as the arguments say."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from faults import let_go

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--work-s", type=float, default=0.06, help="of each step, on each rank")
parser.add_argument("--stages", default="", help="RANK:FACTOR,…: ranks that have more to do from the start")
parser.add_argument("--slow", default="", help="RANK@STEP:SECONDS: this rank is busy for so much longer from then on")
parser.add_argument("--uneven", type=float, default=0.0, help="samples whose lengths vary by this log-normal sigma")
parser.add_argument("--eval-every", type=int, default=0, help="rank 0 evaluates for two seconds, the others wait")
parser.add_argument("--log-s", type=float, default=0.0, help="rank 0 logs for so long in each step")
parser.add_argument("--sample-s", type=float, default=0.0, help="what the data set takes to make a sample")
parser.add_argument("--grow", default="", help="STEP:FACTOR: all ranks have so many times as much to do from then on")
parser.add_argument("--end", type=Path, help="once it is there, this file holds the number of the last step")
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
stages = {int(number): float(factor) for number, factor in (i.split(":") for i in arguments.stages.split(",") if i)}
slow_rank, slow_from, slow_s = -1, 0, 0.0
if arguments.slow:
    who, what = arguments.slow.split("@")
    slow_rank, slow_from, slow_s = int(who), int(what.split(":")[0]), float(what.split(":")[1])

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
chance = random.Random(rank)


grows_at, growth = (float(number) for number in (arguments.grow or "inf:1").split(":"))


class Samples(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]  # mypy skips torch
    """As many as there are steps."""

    def __len__(self) -> int:
        return 8 * arguments.steps

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(arguments.sample_s / 8)
        return torch.randn(32)


def busy(seconds: float) -> None:
    """As a neighbour's load makes it: the same work takes longer, with a CPU for a fifth of the time."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        until_waits_s = time.thread_time() + 0.001
        while time.thread_time() < until_waits_s:
            pass
        time.sleep(min(0.004, max(0.0, until_s - time.monotonic())))


for step, batch in enumerate(torch.utils.data.DataLoader(Samples(), batch_size=8), 1):
    time.sleep(
        arguments.work_s
        * (growth if step >= grows_at else 1.0)
        * stages.get(rank, 1.0)
        * chance.lognormvariate(0.0, arguments.uneven)
    )
    if rank == slow_rank and step >= slow_from:
        busy(slow_s)
    if rank == 0:
        time.sleep(arguments.log_s)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if arguments.end and arguments.end.exists() and step >= int(arguments.end.read_text()):
        break
    if arguments.eval_every and step % arguments.eval_every == 0:
        if rank == 0:
            time.sleep(2.0)
        dist.barrier()

dist.destroy_process_group()
let_go()
