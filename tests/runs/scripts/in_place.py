"""DDP over gloo whose rank 0 saves over one file again and again; the first attempt ends in the middle of a save.

Or as many attempts as it is told, each at a moment of its own: in a save mostly.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--cut-at", type=int, default=40, help="the save after this step, where the first attempt ends")
parser.add_argument("--kills", default="", help="SEED:COUNT: so many attempts end")
parser.add_argument("--copies", action="store_true", help="in attempts that end, wait for the copy of what was saved")
parser.add_argument("--sidecar", action="store_true", help="what is loaded has a file beside it, of its own name")
parser.add_argument("--resume", default="")
arguments = parser.parse_args()
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
PATH = Path("out/last.pt")
LOG = Path("guardrun-runs/latest/guardrun.log")


class CutShort(io.FileIO):
    """A file whose writer is killed when so many bytes are there."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, "w")
        self.size = size

    def write(self, data: bytes) -> int:  # type: ignore[override]
        super().write(bytes(data)[: max(0, self.size - self.tell())])
        if self.tell() >= self.size:
            os.kill(os.getpid(), signal.SIGKILL)
        return len(data)


def end_of(attempt: int) -> tuple[int, float]:
    """In which of its saves an attempt ends, from 1, and how far in it; 1 and more: in a step after it."""
    if not arguments.kills:
        return (arguments.cut_at // arguments.save_every, 0.7) if attempt == 0 else (0, 0.0)
    seed, count = map(int, arguments.kills.split(":"))
    drawn = random.Random(f"{seed} {attempt}")
    return (drawn.randint(1, 3), drawn.uniform(0.0, 1.3)) if attempt < count else (0, 0.0)


def save(step: int, number: int) -> None:
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    PATH.parent.mkdir(exist_ok=True)
    waits = arguments.copies and AT
    kept = LOG.read_text().count("saved_copy_kept") if waits else 0
    torch.save(state, whole := io.BytesIO())
    if number == AT and SHARE < 1.0:
        torch.save(state, CutShort(PATH, int(SHARE * whole.tell())))
    torch.save(state, PATH)
    if arguments.sidecar:
        PATH.with_suffix(".json").write_text(str(step))
    while waits and LOG.read_text().count("saved_copy_kept") == kept:
        time.sleep(0.01)
    with open(f"saved-{ATTEMPT}", "a") as saved:
        saved.write(f"{step}\n")
    if number == AT:
        os.kill(os.getpid(), signal.SIGKILL)


AT, SHARE = end_of(ATTEMPT)
dist.init_process_group("gloo")
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
done = 0
if arguments.resume:
    if arguments.sidecar:
        Path(arguments.resume).with_suffix(".json").read_text()
    content = torch.load(arguments.resume)
    model.module.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    done = content["step"]
print(f"attempt {ATTEMPT} rank {RANK} starts at step {done}", file=sys.stderr, flush=True)
with open(f"steps-{ATTEMPT}-{RANK}", "a") as steps_file:
    for step in range(done + 1, arguments.steps + 1):
        batch = torch.randn(4, 32, generator=torch.Generator().manual_seed(1000 * step + RANK))
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        steps_file.write(f"{step} {loss.item().hex()}\n")
        steps_file.flush()
        time.sleep(0.02)
        if RANK == 0 and step % arguments.save_every == 0:
            save(step, (step - done) // arguments.save_every)
dist.destroy_process_group()
