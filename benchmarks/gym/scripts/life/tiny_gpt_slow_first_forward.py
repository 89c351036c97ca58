"""A tiny GPT-2 has slow forwards on all ranks (a layer tunes itself); gradients are reduced by hand."""
# needs: transformers

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class TunedMLP(torch.nn.Module):
    """Wraps an MLP and tries tile sizes for a while the first time that it is called in training after `retune`."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.tuned = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.tuned:
            end = time.monotonic() + SECONDS / 2
            with torch.no_grad():
                while time.monotonic() < end:
                    for tile in (1, 2, 4):
                        torch.cat([self.inner(part) for part in x.split(tile)])
                    time.sleep(0.01)
            self.tuned = True
        return self.inner(x)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(13)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}
    config = GPT2Config(vocab_size=100, bos_token_id=0, eos_token_id=0, **size)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config)
    for layer in model.transformer.h:
        layer.mlp = TunedMLP(layer.mlp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(60):
        if step == 25:
            for layer in model.transformer.h:
                layer.mlp.tuned = False
        ids = (torch.arange(16) + torch.randint(0, 100, (4, 1))) % 100
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 3))
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/losses.json", "w") as f:
            json.dump(losses, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
