"""Ranks that are killed again and again, and write down which samples each step was computed from.

They resume from the epoch of the checkpoint, and know nothing of where in it they were; by `--itself` they do.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from faults import let_go
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset

from guardrun import hooks

parser = argparse.ArgumentParser()
parser.add_argument("--kills", default="", help="STEP:RANK of each attempt; RANK -1: all of them")
parser.add_argument("--hold", default="", help="STEP of each attempt, at which they wait for their end")
parser.add_argument("--workers", default="0", help="of each attempt, over and over")
parser.add_argument("--samples", type=int, default=220)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--save-every", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--itself", action="store_true", help="the script skips by itself")
parser.add_argument("--everything", action="store_true", help="save_with() and snapshot() in each attempt")
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--unseeded", action="store_true", help="each attempt has an order of its own")
parser.add_argument("--marks", help="where jobs of several nodes have theirs; there are none")
arguments = parser.parse_args()

TOLD_S = 30.0
ATTEMPT, RANK = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
kills = [(number, *map(int, one.split(":"))) for number, one in enumerate(arguments.kills.split(",")) if one]
holds = [(number, int(one)) for number, one in enumerate(arguments.hold.split(",")) if one]
workers = [int(one) for one in arguments.workers.split(",")]
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
data = TensorDataset(torch.arange(arguments.samples), torch.randn(arguments.samples, 8))
sampler = RandomSampler(data) if arguments.unseeded else DistributedSampler(data)
count = workers[ATTEMPT % len(workers)]
loader = DataLoader(data, 4, sampler=sampler, drop_last=True, num_workers=count, persistent_workers=count == 4)
check = DataLoader(data, 40)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.001)
step, start_epoch, start = 0, 0, 0
path = hooks.resume_from()
if path:
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    step, start_epoch, start = state["step"], state["epoch"], state["batches"]
if arguments.unseeded:
    torch.manual_seed(ATTEMPT)
Path("out").mkdir(exist_ok=True)


def state_now() -> dict[str, object]:
    return {"model": model.module.state_dict(), "step": step, "epoch": epoch, "batches": at}


def save() -> str:
    torch.save(state_now(), f"out/{RANK}.tmp")
    os.replace(f"out/{RANK}.tmp", f"out/step_{step}.pt")
    return f"out/step_{step}.pt"


def wait_until_told() -> None:
    """Of this attempt's data by both ranks: what one that is killed has not sent yet nobody hears."""
    until_s = time.monotonic() + TOLD_S
    words = re.compile(rb'"type":"data_replayed","attempt":%d,"global_rank":(\d+)' % ATTEMPT)
    while time.monotonic() < until_s:
        for journal in Path("guardrun-runs").glob("*/events.jsonl"):
            if len(set(words.findall(journal.read_bytes()))) == 2:
                return
        time.sleep(0.01)


def wait_until_all_have_done(step: int) -> None:
    """And have written it down: another rank, which is about to be ended, may only have come to its gradients."""
    until_s, words = time.monotonic() + TOLD_S, f"{ATTEMPT} {step} "
    others = [Path(f"trained-{rank}") for rank in range(dist.get_world_size()) if rank != RANK]
    while time.monotonic() < until_s:
        if all(any(line.startswith(words) for line in one.read_text().splitlines()) for one in others):
            return
        time.sleep(0.01)


print(f"rank {RANK} starts at step {step}", flush=True)
if ATTEMPT % 4 == 3 or arguments.everything:
    hooks.save_with(save)
log = open(f"trained-{RANK}", "a", buffering=1)  # noqa: SIM115
for epoch in range(start_epoch, arguments.epochs):
    if isinstance(sampler, DistributedSampler):
        sampler.set_epoch(epoch)
    passed = start if arguments.itself and epoch == start_epoch else 0
    ids: list[int] = []
    for number, batch in enumerate(loader):
        which = batch.pop(0)
        if number < passed:
            continue
        model(batch[0]).square().mean().backward()
        ids += which.tolist()
        at = number + 1
        if (number + 1) % arguments.accumulate:
            continue
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        log.write(f"{ATTEMPT} {step} {epoch} {','.join(map(str, ids))}\n")
        ids = []
        if step % arguments.save_every == 0 and RANK == 0:
            save()
        if arguments.everything:
            hooks.snapshot(state_now, path=f"out/snapshot_{step}.pt")
        time.sleep(TOLD_S if (ATTEMPT, step) in holds else arguments.step_s)
        if {(ATTEMPT, step, RANK), (ATTEMPT, step, -1)} & {*kills}:
            wait_until_all_have_done(step)
            if ATTEMPT and not arguments.everything:
                wait_until_told()
            os.kill(os.getpid(), signal.SIGKILL)
    with torch.no_grad():
        for _, features in check:
            model(features)
    start = 0
dist.destroy_process_group()
let_go()
