"""Lightning on DDP, with the same numbers each time: a batch follows from its place, and nothing is random."""

from __future__ import annotations

import argparse
import hashlib
import os

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))

    def training_step(self, batch: torch.Tensor, batch_index: int) -> torch.Tensor:
        seed = 1000 * batch_index + int(os.environ["RANK"])
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
        return self.model(inputs).square().mean()

    def validation_step(self, batch: torch.Tensor, batch_index: int) -> None:
        self.log("validation", self.model(torch.ones(1, 8)).mean(), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=50)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt_path")
    arguments = parser.parse_args()
    L.seed_everything(1)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=16,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=6,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=CSVLogger("logs", name="", version=""),
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath="out", every_n_train_steps=6, save_top_k=-1)],
    )
    loaders = [torch.utils.data.DataLoader(torch.zeros(400, 1)) for _ in range(2)]  # type: ignore[arg-type]
    model = Model()
    trainer.fit(model, *loaders, ckpt_path=arguments.ckpt_path)
    if trainer.is_global_zero:
        digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
        loop = trainer.fit_loop.epoch_loop
        print("weights", digest.hexdigest(), trainer.global_step, loop._batches_that_stepped, loop.batch_progress)


if __name__ == "__main__":
    main()
