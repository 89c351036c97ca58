"""DDP over gloo with DataLoaders; one sample makes the loss NaN each time that it is trained on.

nan_sample.py [--resume FILE]; saves out/ckpt_STEP.pt every twenty steps. Attempt 0 does not end, later ones take an
epoch.
Each rank writes the samples that it has trained on to out/trained-ATTEMPT-RANK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.insert(0, str(Path(__file__).parent))
from faults import let_go

SAMPLES, BATCH, EPOCHS, SAVE_EVERY, STEP_S = 480, 4, 1, 20, 0.02
BAD_SAMPLE = 261
RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Samples(Dataset):  # type: ignore[misc]  # torch is not followed by mypy
    is_held_out = False

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        sample = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return index, sample * float("nan") if index == BAD_SAMPLE and not self.is_held_out else sample


class HeldOut(Samples):
    is_held_out = True


parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
arguments = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(3)
inner = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(inner.parameters(), 0.05)
done = 0
if arguments.resume:
    saved = torch.load(arguments.resume)
    inner.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["step"]
model = DistributedDataParallel(inner)
Path("out").mkdir(exist_ok=True)
sampler: DistributedSampler = DistributedSampler(Samples(), seed=5)
loader = DataLoader(Samples(), BATCH, sampler=sampler, num_workers=2, multiprocessing_context="fork")
# The same order, and so the same lists of indices.
checked = DataLoader(HeldOut(), BATCH, sampler=sampler)
an_epoch = len(loader)
trained: list[list[int]] = []
seen: set[int] = set()
loss, step = torch.zeros(()), done
for epoch in range(done // an_epoch, EPOCHS if ATTEMPT else 1000):
    sampler.set_epoch(epoch)
    with torch.no_grad():
        for indices, batch in checked:
            seen.update(indices.tolist())
            inner(batch)
    for number, (indices, batch) in enumerate(loader, start=epoch * an_epoch):
        if number < done:
            continue
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        trained.append(indices.tolist())
        if step % SAVE_EVERY == 0 and RANK == 0:
            torch.save(
                {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"out/{step}.pt"
            )
        time.sleep(STEP_S)
told = {"trained": trained, "checked": sorted(seen), "loss": float(loss), "step": step}
Path(f"out/trained-{ATTEMPT}-{RANK}.json").write_text(json.dumps(told))
dist.destroy_process_group()
let_go()
