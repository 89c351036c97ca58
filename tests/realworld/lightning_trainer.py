"""What Lightning's Trainer leaves: checkpoints by epoch and step, and a table of losses."""

from __future__ import annotations

import csv
from pathlib import Path

from tests.realworld.training import SCRIPTS

IN_TIME = '[checkpoint]\nresume_args = ["--ckpt_path", "{path}"]\n'
CONFIG = f"{IN_TIME}jit_s = 0\n"
"""What the trainer saves at its own times is what is resumed from."""
STEPS, EVERY = 100, 20
FLAGS = [str(SCRIPTS / "lit.py"), f"--max_steps={STEPS}", f"--every={EVERY}"]


def checkpoint(folder: Path, step: int) -> Path:
    """Where ModelCheckpoint writes that of a step."""
    return folder / "checkpoints" / f"epoch=0-step={step}.ckpt"


def check_end(stdout: str, folder: Path, steps: int = STEPS) -> None:
    """It got to this step, and the loss fell."""
    assert f"ended at step {steps} with loss" in stdout
    with (folder / "logs" / "metrics.csv").open() as file:
        losses = {int(row["step"]): float(row["loss"]) for row in csv.DictReader(file)}
    assert max(losses) == steps - 1
    first, last = min(losses), max(losses)
    assert losses[last] < losses[first]
