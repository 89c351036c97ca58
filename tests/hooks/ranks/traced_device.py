"""Trains on the emulated device, whose backward pass has a thread of its own; traced, inspected and profiled, or not.

Arguments: a folder, and `trace` or `plain`. Losses go to stdout, what was told to FOLDER/told.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from guardrun.hooks.rank import rank as ranks
from guardrun.hooks.wire.examinations import profile_name
from tests.emu import device as emu

STEPS = 14
folder, is_traced = Path(sys.argv[1]), sys.argv[2] == "trace"


class Block(nn.Module):  # type: ignore[misc]  # mypy skips torch
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(16, 16), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear(x))  # type: ignore[no-any-return]


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))  # type: ignore[no-any-return]


def main() -> None:
    emu.use()
    torch.manual_seed(1)
    model, x = Net().to("emu"), torch.ones(4, 16).to("emu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    asked: Any = None
    told: list[Any] = []
    for step in range(STEPS):
        loss = model(x).square().mean()
        loss.backward()
        if is_traced and step in (2, 6, 8):
            from guardrun.hooks.examine.inspection import Inspection
            from guardrun.hooks.examine.module_times import ModuleTimes
            from guardrun.hooks.examine.profiling import Profiling

            rank = ranks.active
            assert rank is not None
            told += [asked.on_beat(0)] if asked is not None else []
            arguments = {"steps": 2, "seconds": 60, "bytes": 100_000}
            asked = (ModuleTimes if step == 2 else Inspection if step == 6 else Profiling)(rank, arguments)
            asked.on_beat(0)
        optimizer.step()
        optimizer.zero_grad()
        print(repr(loss.item()))
    if asked is not None:
        (folder / "told").write_text(json.dumps([*told, asked.on_beat(0)]))
        os.replace(Path(rank.sockets, profile_name(0, 0)), folder / "trace.json")


main()
