"""DataLoader workers that now and then need seconds for a sample, so that all ranks wait for their next batch."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class Clips(Dataset):
    def __init__(self) -> None:
        self.samples = torch.randn(640, 40, generator=torch.Generator().manual_seed(1))
        self.rare = {200, 201, 420, 421}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> torch.Tensor:
        if i in self.rare:
            time.sleep(SECONDS / 2)
        return self.samples[i].cumsum(0)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = Clips()
    loader = DataLoader(data, batch_size=5, num_workers=2, sampler=DistributedSampler(data, shuffle=False))
    torch.manual_seed(0)
    model = torch.nn.Linear(40, 20)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    losses = []
    for batch in loader:
        loss = (model(batch) - batch[:, 1::2]).abs().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        losses.append(f"{loss.item():.3f}")
    os.makedirs("out", exist_ok=True)
    with open(f"out/losses_rank{dist.get_rank()}.txt", "w") as f:
        f.write("\n".join(losses))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
