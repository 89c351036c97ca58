"""DDP over gloo; in attempt 0, which does not end, one batch of rank 1 is no number. Then: as if that had not been?

nan_once.py [--resume FILE] [--keeps-one]; saves out/ckpt_STEP.pt every twenty steps, and after that batch; in attempt 0
no more from then on. --keeps-one: out/last.pt at step 60 alone, by way of a temporary file, and once more where it is
told to end.
"""

from __future__ import annotations

import argparse
import copy
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from faults import let_go

STEPS, SAVE_EVERY, BAD_AT, STEP_S = 160, 20, 67, 0.02
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters(), 0.05)


def loss_of(model: torch.nn.Module, step: int, rank: int) -> torch.Tensor:
    batch = torch.randn(16, 4, generator=torch.Generator().manual_seed(2 * step + rank))
    if (ATTEMPT, step, rank, model.training) == (0, BAD_AT, 1, True):
        batch *= float("nan")
    error: torch.Tensor = model(batch) - batch.sum(1, keepdim=True)
    return error.square().mean()


parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--keeps-one", action="store_true")
arguments = parser.parse_args()
dist.init_process_group("gloo")
inner, optimizer = make()
first = 1
if arguments.resume:
    saved = torch.load(arguments.resume)
    inner.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"] + 1
model = DistributedDataParallel(inner)
Path("out").mkdir(exist_ok=True)


def save(name: str) -> None:
    state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(copy.deepcopy(state), f"out/{name}")


def is_due(step: int) -> bool:
    return step == BAD_AT or (step % SAVE_EVERY == 0 and (ATTEMPT > 0 or step < BAD_AT))


def end(signum: int, frame: object) -> None:
    if RANK == 0:
        save("last.pt")
    raise SystemExit(0)


if arguments.keeps_one:
    signal.signal(signal.SIGTERM, end)
for step in range(first, (STEPS if ATTEMPT else 100_000) + 1):
    optimizer.zero_grad()
    loss = loss_of(model, step, RANK)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    if arguments.keeps_one and step == 60 and RANK == 0:
        save("last.pt.tmp")
        os.replace("out/last.pt.tmp", "out/last.pt")
    elif not arguments.keeps_one and RANK == 0 and is_due(step):
        save(f"ckpt_{step}.pt")
    time.sleep(STEP_S)
if RANK == 0:
    alone, optimizer = make()
    alone.eval()
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        (0.5 * (loss_of(alone, step, 0) + loss_of(alone, step, 1))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    pairs = zip(inner.parameters(), alone.parameters(), strict=True)
    print("as if it had not been:", all(torch.allclose(*pair, atol=1e-4) for pair in pairs), flush=True)
dist.destroy_process_group()
let_go()
