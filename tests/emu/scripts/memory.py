"""Trains on the emulated device until a file is there, each rank with a habit of its own. argv: the file, habits.

`leaks`: losses are kept with their graphs, for a plot, from when it is first asked for something: however late that is,
there is some left to see; `streams`: two by turns, neither of which can use what the other has left; `tidy`: an
evaluation with larger steps, its outputs kept until it ends, and empty_cache().
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.wire.board import Field
from tests.emu import device as emu

END, HABITS = Path(sys.argv[1]), sys.argv[2:]
MIB = 1 << 20
STEP_S = 0.05
MOST_LOSSES = 330
"""Of a MiB each, of 400: nothing ends for want of memory on a machine that is slow to tell."""

torch.set_num_threads(1)
emu.use()
dist.init_process_group("nccl")
STREAMS = [torch.Stream("emu"), torch.Stream("emu")]
habit = HABITS[dist.get_rank()]
rank = ranks.active
assert rank is not None
model = DistributedDataParallel(torch.nn.Linear(1024, 8).to("emu"))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
losses, outputs = [], []
number = 0
is_over = torch.zeros(1)
while not is_over.item():
    number += 1
    x = torch.ones(256, 1024, device="emu")
    loss = model(x).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    emu.synchronize()
    if habit == "leaks" and rank.words[Field.EXAMINE_TAKEN] and len(losses) < MOST_LOSSES:
        losses.append(model.module(x).square().mean())
    elif habit == "streams":
        with STREAMS[number % 2]:
            activations = [torch.empty(60 * MIB, dtype=torch.uint8, device="emu") for _ in range(4)]
        del activations
    elif habit == "tidy" and number % 40 < 5:
        outputs.append(torch.empty(16 * MIB, dtype=torch.uint8, device="emu"))
    elif habit == "tidy" and number % 40 == 5:
        outputs.clear()
        torch.accelerator.empty_cache()
    time.sleep(STEP_S)
    if number % 20 == 0:
        stop = torch.tensor([float(END.exists())]).to("emu")
        dist.all_reduce(stop)
        is_over = stop.cpu()
dist.destroy_process_group()
os._exit(0)
