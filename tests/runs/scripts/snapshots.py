"""DDP over gloo, or shards that each rank keeps for itself; saves nothing, and has its state kept in memory."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from faults import let_go
from held_memory import wait_until_held
from torch.nn.parallel import DistributedDataParallel

from guardrun import hooks

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--kills", default="", help="per attempt, comma-separated: RANK@STEP, at some moment of that step")
parser.add_argument("--how", default="replicas", help="or shards, alone, default")
parser.add_argument("--elements", type=int, default=50_000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--resume", default="")
arguments = parser.parse_args()
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
KILLS = [kill for kill in arguments.kills.split(",") if kill]
STEP_S = 0.02

dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
large = torch.zeros(arguments.elements)
done = 0


def state(steps: int) -> dict[str, object]:
    large.fill_(steps)
    return {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": steps, "large": large}


def load(path: str) -> int:
    content = torch.load(path)
    model.module.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    assert bool((content["large"] == content["step"]).all()), "torn"
    return int(content["step"])


def keep(steps: int) -> None:
    how = arguments.how
    if how == "replicas":
        hooks.snapshot(lambda: state(steps), path=f"out/step_{steps}.pt")
    elif how == "shards":
        hooks.snapshot(lambda: state(steps), path="out/step_{step}_rank{rank}.pt")
    elif how == "default":
        hooks.snapshot(state(steps))
    elif how == "alone" and RANK == 0:
        hooks.snapshot(lambda: state(steps), path="out/latest.pt")


def plan_kill() -> int:
    """The step in which this rank is killed; 0: in none."""
    if len(KILLS) <= ATTEMPT:
        return 0
    rank, _, step = KILLS[ATTEMPT].partition("@")
    return int(step) if int(rank) == RANK else 0


def kill_soon() -> None:
    after_s = random.Random(arguments.seed + ATTEMPT).random() * 2 * STEP_S
    threading.Timer(after_s, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


if arguments.resume:
    path = arguments.resume
    done = load(path.replace("rank0", f"rank{RANK}") if arguments.how == "shards" else path)
print(f"attempt {ATTEMPT} rank {RANK} starts at step {done}", file=sys.stderr, flush=True)
steps_file = open(f"steps-{ATTEMPT}-{RANK}", "a")  # noqa: SIM115
kill_at = plan_kill()
for step in range(done + 1, arguments.steps + 1):
    time.sleep(STEP_S)
    if step == kill_at:
        kill_soon()
    batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + RANK))
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    steps_file.write(f"{step} {loss.item().hex()}\n")
    steps_file.flush()
    keep(step)  # last: what is resumed from has its line
    if step == done + 1:
        wait_until_held()
Path(f"end-{RANK}").write_text(str([p.sum().item().hex() for p in model.parameters()]))
dist.barrier()
dist.destroy_process_group()
let_go()
