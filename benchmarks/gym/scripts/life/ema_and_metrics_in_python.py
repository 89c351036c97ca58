"""After each epoch rank 0 averages weights and computes an AUC in plain Python; the others wait."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))
EPOCHS = 4


def auc(scores: list[float], labels: list[int]) -> float:
    positive = [s for s, y in zip(scores, labels, strict=True) if y]
    negative = [s for s, y in zip(scores, labels, strict=True) if not y]
    wins = 0
    for p in positive:
        for n in negative:
            wins += p > n
    return wins / max(1, len(positive) * len(negative))


def average(shadow: list[float], current: list[float], decay: float) -> list[float]:
    return [decay * old + (1 - decay) * new for old, new in zip(shadow, current, strict=True)]


class Run:
    def __init__(self) -> None:
        torch.manual_seed(15)
        self.model = torch.nn.Linear(64, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.shadow = self.model.weight.flatten().tolist()
        self.log: list[dict[str, float]] = []

    def epoch(self) -> None:
        for _ in range(25):
            x = torch.randn(128, 64)
            loss = torch.nn.functional.soft_margin_loss(self.model(x).squeeze(1), x[:, 0].sign())
            self.optimizer.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                dist.all_reduce(p.grad)
            self.optimizer.step()

    def evaluate(self, seconds: float) -> None:
        self.shadow = average(self.shadow, self.model.weight.flatten().tolist(), 0.9)
        x = torch.randn(400, 64, generator=torch.Generator().manual_seed(3))
        scores = [sum(w * v for w, v in zip(self.shadow, row, strict=True)) for row in x.tolist()]
        labels = [int(v > 0) for v in x[:, 0].tolist()]
        self.log.append({"auc": round(auc(scores, labels), 3), "ema": round(sum(self.shadow), 3)})
        until = time.monotonic() + seconds
        bootstrap = 1
        while time.monotonic() < until:
            auc(scores[bootstrap % 100 :], labels[bootstrap % 100 :])
            bootstrap += 1


dist.init_process_group("gloo")
torch.set_num_threads(1)
run = Run()
for number in range(EPOCHS):
    run.epoch()
    if dist.get_rank() == 0 and number < EPOCHS - 1:
        run.evaluate(SECONDS / (EPOCHS - 1))
    dist.barrier()
if dist.get_rank() == 0:
    os.makedirs("out", exist_ok=True)
    with open("out/metrics.json", "w") as f:
        json.dump(run.log, f)
dist.barrier()
dist.destroy_process_group()
