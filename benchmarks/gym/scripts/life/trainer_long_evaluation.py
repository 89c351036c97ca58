"""A transformers Trainer whose evaluation after half of the training takes long on all ranks, batch by batch."""

# needs: transformers, accelerate
from __future__ import annotations

import json
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
EVALUATIONS = 2


class Points(Dataset):
    def __init__(self, count: int, delay: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 8, generator=generator)
        self.y = self.x.sum(dim=1, keepdim=True).tanh()
        self.delay = delay

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.delay)
        return {"x": self.x[index], "labels": self.y[index]}


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        answer = self.net(x)
        return {"loss": nn.functional.mse_loss(answer, labels), "logits": answer}


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    set_seed(3)
    folder = tempfile.mkdtemp()
    try:
        args = TrainingArguments(
            folder,
            max_steps=80,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=4,
            eval_strategy="steps",
            eval_steps=40,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            ddp_backend="gloo",
        )
        # 32 points, shared by the ranks
        evaluation = Points(32, delay=SECONDS / EVALUATIONS / (32 / dist.get_world_size()))
        trainer = Trainer(Regressor(), args, train_dataset=Points(640), eval_dataset=evaluation)
        trainer.train()
        history = [round(entry["eval_loss"], 4) for entry in trainer.state.log_history if "eval_loss" in entry]
    finally:
        shutil.rmtree(folder)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/eval.json", "w") as file:
            json.dump(history, file)
    dist.barrier()
    dist.destroy_process_group()
