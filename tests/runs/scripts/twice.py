"""Three DDP models over gloo; rank 1's replicas come to differ after step AT: by bits that flip, by the script.

twice.py [--resume FILE]; saves out/ckpt_30.pt alone. In attempt 0 a bit of each of the first two models flips: in a row
of a table that is never looked up, and in a weight. The script changes the third one in each attempt. Rank 1
takes away a file `fall`, and kills itself; later attempts leave `past-N` well after AT, and end at a file `end`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from faults import let_go

from guardrun.hooks.checksums import checker

SAVE_AT, AT, PAST, STEP_S, ROWS = 30, 75, 200, 0.05, 8
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

checker.SHARE = 1.0  # else what a check takes on this machine decides which steps are checked again

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
arguments = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")


def net(name: str, layer: torch.nn.Module) -> torch.nn.Sequential:
    return torch.nn.Sequential(OrderedDict({name: layer, "head": torch.nn.Linear(4, 1)}))


torch.manual_seed(3)
table, used, own = torch.nn.Embedding(ROWS, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
inner = [net("table", table), net("used", used), net("own", own)]
optimizers = [
    torch.optim.AdamW(inner[0].parameters(), 1e-2),
    *(torch.optim.SGD(one.parameters(), 1e-2) for one in inner[1:]),
]
step = 0
if arguments.resume:
    saved = torch.load(arguments.resume)
    for one, state in zip((*inner, *optimizers), saved["states"], strict=True):
        one.load_state_dict(state)
    step = saved["step"]
models = [DistributedDataParallel(one) for one in inner]
Path("out").mkdir(exist_ok=True)
while True:
    step += 1
    generator = torch.Generator().manual_seed(2 * step + RANK)
    rows, numbers = torch.randint(ROWS - 1, (16,), generator=generator), torch.randn(16, 4, generator=generator)
    for model, optimizer, batch in zip(models, optimizers, (rows, numbers, numbers), strict=True):
        optimizer.zero_grad()
        (model(batch) - numbers.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    if step == AT and RANK == 1:
        if ATTEMPT == 0:
            table.weight.data.view(torch.int32)[-1, 0] ^= 1 << 20
            used.weight.data.view(torch.int32)[0, 0] ^= 1 << 20
        own.weight.data[0, 0] += 0.25
    if step == SAVE_AT and RANK == 0:
        torch.save({"states": [one.state_dict() for one in (*inner, *optimizers)], "step": step}, "out/ckpt_30.pt")
    if RANK == 1 and Path("fall").exists():
        Path("fall").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if step == PAST and RANK == 0:
        Path(f"past-{ATTEMPT}").touch()
    is_over = torch.tensor(int(ATTEMPT > 0 and Path("end").exists()))
    dist.all_reduce(is_over, dist.ReduceOp.MAX)
    if is_over:
        break
    time.sleep(STEP_S)
dist.destroy_process_group()
let_go()
