"""transformers' Trainer and Lightning's, as their documentation has them, over gloo: argv is as train.py's beside it.

The last rank's batch of a step has a NaN in it (`…_nan`), or the learning rate is three hundred times what it was from
then on (`…_learning_rate`); else all is well. Neither model nor trainer knows of guardrun.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from typing import Any

import torch

CASE, AT, STEPS, STEP_S = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WIDTH, BATCH = 16, 16
FRAMEWORK, _, WHAT = CASE.partition("_")
MICRO_BATCHES = 4 if WHAT == "accumulate" else 1
RAISED = 300.0

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class Answers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):  # type: ignore[misc]  # mypy skips torch
    """A teacher's, with noise. This rank's samples, in the order in which they are taken."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self._teacher = torch.randn(WIDTH, 4, generator=generator)
        self._taken = 0

    def __len__(self) -> int:
        return BATCH * WORLD * MICRO_BATCHES * (STEPS + 10)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        question = torch.randn(WIDTH, generator=generator)
        answer = question @ self._teacher + 0.3 * torch.randn(4, generator=generator)
        step = self._taken // (BATCH * MICRO_BATCHES) + 1
        self._taken += 1
        if WHAT == "nan" and RANK == WORLD - 1 and step == AT:
            question[3] = torch.nan
        return {"question": question, "answer": answer}


class Net(torch.nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Two layers, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))

    def forward(self, question: torch.Tensor, answer: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(STEP_S / MICRO_BATCHES)
        return {"loss": (self.layers(question) - answer).square().mean()}


def raise_rate(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= RAISED


def with_transformers() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Raises(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if WHAT == "learning_rate" and state.global_step + 1 == AT:
                raise_rate(kwargs["optimizer"])
                scheduler = getattr(kwargs["lr_scheduler"], "scheduler", kwargs["lr_scheduler"])  # accelerate's wrapper
                scheduler.base_lrs = [RAISED * rate for rate in scheduler.base_lrs]

    arguments = TrainingArguments(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=MICRO_BATCHES,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_strategy="no",
        logging_steps=50,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    Trainer(model=Net(), args=arguments, train_dataset=Answers(), callbacks=[Raises()]).train()


def with_lightning() -> None:
    import lightning as L

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Model(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            if WHAT == "learning_rate" and number + 1 == AT:
                raise_rate(self.optimizers(use_pl_optimizer=False))
            loss: torch.Tensor = self.net(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=WORLD,
        strategy="ddp",
        max_steps=STEPS,
        accumulate_grad_batches=MICRO_BATCHES,
        gradient_clip_val=None if WHAT == "unclipped" else 1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(Answers(), batch_size=BATCH))


if __name__ == "__main__":
    {"transformers": with_transformers, "lightning": with_lightning}[FRAMEWORK]()
