"""An Accelerate loop: the main process renders a slow report of the gathered metrics; the rest wait for everyone."""

# needs: accelerate
from __future__ import annotations

import json
import os
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))

torch.set_num_threads(1)
set_seed(21)
accelerator = Accelerator(cpu=True)
x = torch.randn(200, 6)
y = (x @ torch.arange(6.0)).unsqueeze(1)
train = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
test = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=8)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
report = {}

for epoch in range(4):
    model.train()
    for inputs, target in train:
        loss = torch.nn.functional.mse_loss(model(inputs), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    errors = []
    with torch.no_grad():
        for inputs, target in test:
            answers, truths = accelerator.gather_for_metrics((model(inputs), target))
            errors.append((answers - truths).abs().flatten())
    if accelerator.is_main_process:
        report[epoch] = {"count": torch.cat(errors).numel(), "error": round(torch.cat(errors).mean().item(), 3)}
        if epoch in (1, 2):
            accelerator.print(f"epoch {epoch}: rendering the report")
            time.sleep(SECONDS / 2)
    accelerator.wait_for_everyone()

if accelerator.is_main_process:
    os.makedirs("out", exist_ok=True)
    with open("out/report.json", "w") as file:
        json.dump(report, file, indent=1)
accelerator.wait_for_everyone()
accelerator.end_training()
