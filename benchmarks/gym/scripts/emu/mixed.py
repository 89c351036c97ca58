"""DDP in a group of two backends, `cpu:gloo,cuda:nccl`: what is the host's goes over gloo."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gym.scripts import pauses, planted
from benchmarks.gym.scripts.diary import RANK
from benchmarks.gym.scripts.emu.layouts import Ddp
from benchmarks.gym.scripts.emu.suffering import suffer


class Mixed(Ddp):
    """DDP in a group of two backends, whose gloo has asynchronous checkpoints; metrics and barriers have a group of
    their own: the thread that saves and the one that trains must not share one order of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts = dist.new_group(backend="gloo")
        self.saving: Future[Any] | None = None

    def train(self, step: int) -> Tensor:
        loss = super().train(step)
        if step % 5 == 0:
            suffer("metrics", step)
            if not planted.is_due("emu_mixed_skip", step):
                dist.all_reduce(torch.tensor([float(step)]), group=self.hosts)  # here: emu_mixed_skip
        return loss

    def save_later(self, step: int) -> None:
        """An asynchronous checkpoint: copied now, written by a thread, which also meets the other ranks over gloo."""
        from torch.distributed import checkpoint

        if self.saving is not None:
            self.saving.result()  # here: emu_mixed_upload
        seconds, works_s = 3600.0 if planted.is_due("emu_mixed_upload", step) else 0.0, 0.0
        peer = planted.take("emu_async_peer", step)
        if peer is not None and RANK == 1:
            seconds = peer.seconds
        slow = planted.take("emu_async_save", step) or planted.take("emu_async_wait", step)
        if slow is not None:
            works_s = slow.seconds
        writer = _writer(f"out/ckpt_{step}", seconds, works_s)
        self.saving = checkpoint.async_save(self.state(), storage_writer=writer)
        if (peer is not None and RANK == 0) or (slow is not None and slow.name == "emu_async_wait"):
            self.saving.result()

    def finish(self) -> None:
        """The last checkpoint is written before the group goes."""
        if self.saving is not None:
            self.saving.result()

    def load_newest(self, path: str) -> int:
        """From a checkpoint that is whole, the one that is named or the newest; its step."""
        from torch.distributed import checkpoint

        found = sorted((each.parent for each in Path("out").glob("ckpt_*/.metadata")), key=_step_of)
        chosen = Path(path) if path else found[-1] if found else None
        if chosen is None:
            return 0
        content = self.state()
        checkpoint.load(content, checkpoint_id=chosen)
        self.load(content)
        return _step_of(chosen)


def _step_of(path: Path) -> int:
    return int(path.name.split("_")[1])


def _writer(path: str, asleep_s: float, works_s: float) -> Any:
    """Writes files, after so long: asleep in a request, or busy with the disk."""
    from torch.distributed.checkpoint import FileSystemWriter

    class Writer(FileSystemWriter):  # type: ignore[misc]
        def write_data(self, plan: Any, planner: Any) -> Any:
            time.sleep(asleep_s)
            if works_s:
                pauses.write_for_long(works_s)
            return super().write_data(plan, planner)

    return Writer(path)
