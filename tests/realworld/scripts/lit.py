"""Training with Lightning, as its documentation has it: DDP, ModelCheckpoint, `fit(…, ckpt_path=…)`."""

from __future__ import annotations

import argparse
import time

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos import Transformer
from lightning.pytorch.loggers import CSVLogger

STEP_S = 0.03
"""What a device would take."""


class Counting(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Tokens that count on from one, and what comes next."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = (torch.arange(33) + 7 * index) % 64
        return tokens[:-1], tokens[1:]


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(vocab_size=64, ninp=32, nhead=2, nhid=32, nlayers=1)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_index: int) -> torch.Tensor:
        inputs, target = batch
        time.sleep(STEP_S)
        loss = torch.nn.functional.nll_loss(self.model(inputs, target).flatten(0, -2), target.flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt_path")
    parser.add_argument("--max_steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--save_last", action="store_true")
    arguments = parser.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=arguments.max_steps,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(
                dirpath="checkpoints",
                every_n_train_steps=arguments.every,
                save_top_k=-1,
                save_last=arguments.save_last,
            )
        ],
    )
    loader = torch.utils.data.DataLoader(Counting(), batch_size=4)
    trainer.fit(Model(), loader, ckpt_path=arguments.ckpt_path)
    if trainer.is_global_zero:
        print(f"ended at step {trainer.global_step} with loss {trainer.callback_metrics['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
