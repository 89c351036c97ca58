"""What transformers' Trainer leaves: folders checkpoint-N, each with the history of all steps before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

IN_TIME = '[checkpoint]\nresume_args = ["--resume_from_checkpoint", "{path}"]\n'
CONFIG = f"{IN_TIME}jit_s = 0\n"
"""What the trainer saves at its own times is what is resumed from."""

FILES = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state_0.pth",
    "rng_state_1.pth",
    "trainer_state.json",
)

STEPS, EVERY = 100, 20

FLAGS = ["--output_dir=out", f"--max_steps={STEPS}", "--save_strategy=steps", f"--save_steps={EVERY}"]
FLAGS += ["--logging_steps=1", "--learning_rate=3e-3", "--per_device_train_batch_size=8"]
FLAGS += ["--use_cpu=True", "--report_to=none", "--disable_tqdm=True"]


def is_written(folder: Path) -> bool:
    """Say whether a checkpoint is there with every file: trainer_state.json comes after the weights, none is last."""
    return all((folder / name).is_file() and (folder / name).stat().st_size for name in FILES)


def checkpoint(out: Path, step: int) -> Path:
    return out / f"checkpoint-{step}"


def read_history(folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """(global_step, what was logged)"""
    state = json.loads((folder / "trainer_state.json").read_text())
    return state["global_step"], state["log_history"]


def check_history(folder: Path, steps: int = STEPS) -> None:
    """Every step once, from the first to the last, across the restart; and the loss fell."""
    step, history = read_history(folder)
    losses = {entry["step"]: entry["loss"] for entry in history if "loss" in entry}
    assert step == steps
    assert [entry["step"] for entry in history if "loss" in entry] == list(range(1, steps + 1))
    assert losses[steps] < 0.8 * losses[1]
