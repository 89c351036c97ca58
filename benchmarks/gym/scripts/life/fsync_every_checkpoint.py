"""Rank 0 saves large checkpoints, syncs each one to the disk and reads it back to verify it; the others wait."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
MEGABYTES = 64 if SECONDS > 10 else 8


def save(path: Path, state: dict[str, torch.Tensor]) -> None:
    part = path.with_suffix(".part")
    with part.open("wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    part.rename(path)


def checkpoint_round(folder: Path, model: torch.nn.Module, seconds: float) -> None:
    moments = torch.full((MEGABYTES, 1 << 18), 0.5)
    end = time.monotonic() + seconds
    copy = 0
    while time.monotonic() < end:
        path = folder / f"copy{copy % 2}.pt"
        save(path, {**model.state_dict(), "moments": moments})
        back = torch.load(path)
        assert torch.equal(back["moments"], moments)
        copy += 1


def train(model: torch.nn.Module, steps: int) -> None:
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        image = torch.rand(8, 1, 20, 20)
        opt.zero_grad()
        (model(image) - image).abs().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(77)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(6, 1, 1))
    train(model, 30)
    for _ in range(2):
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint_round(Path(folder), model, SECONDS / 2)
        dist.barrier()
        train(model, 30)
    if dist.get_rank() == 0:
        Path("out").mkdir(exist_ok=True)
        torch.save({k: v.round(decimals=3) for k, v in model.state_dict().items()}, "out/final.pt")
    dist.barrier()
    dist.destroy_process_group()


main()
