"""Rank 0 fits probes with numpy (least squares, then big SVDs) while the others wait at a barrier."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def probes(seconds: float) -> list[float]:
    rng = np.random.default_rng(7)
    features, targets = rng.normal(size=(4000, 120)), rng.normal(size=(4000, 5))
    result = np.linalg.lstsq(features, targets, rcond=None)[0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        np.linalg.lstsq(features, targets, rcond=None)
    return [round(float(v), 3) for v in result[:, 0][:10]]


def spectrum(seconds: float) -> list[float]:
    size = 300 if seconds < 5 else 1000
    activations = np.random.default_rng(8).normal(size=(size, size))
    end = time.monotonic() + seconds
    while True:
        singular = np.linalg.svd(activations, full_matrices=True)[1]
        if time.monotonic() >= end:
            return [float(round(v / singular[0], 2)) for v in singular[:5]]


def steps(model: torch.nn.Sequential, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        batch = torch.randn(96, 64)
        loss = (model(batch).squeeze(1) - batch.max(dim=1).values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    steps(model, optimizer, 40)
    if dist.get_rank() == 0:
        found = {"probe": probes(SECONDS / 2), "parameters": sum(p.numel() for p in model.parameters())}
        found["spectrum length"] = len(spectrum(SECONDS / 2))
        os.makedirs("out", exist_ok=True)
        with open("out/probe.json", "w") as f:
            json.dump(found, f)
    dist.barrier()
    steps(model, optimizer, 40)
    if dist.get_rank() == 0:
        torch.save({k: v.round(decimals=4) for k, v in model.state_dict().items()}, "out/model.pt")
    dist.barrier()
    dist.destroy_process_group()
