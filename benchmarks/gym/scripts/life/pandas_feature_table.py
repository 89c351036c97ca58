"""Rank 0 builds features with pandas (groupby, merge, apply) between two epochs; the others wait for the table."""
# needs: pandas

from __future__ import annotations

import os
import time

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


def features(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    visits = pd.DataFrame({"user": rng.integers(0, rows // 10, rows), "spent": rng.integers(0, 1000, rows)})
    users = pd.DataFrame({"user": np.arange(rows // 10), "age": rng.integers(18, 80, rows // 10)})
    sums = visits.groupby("user")["spent"].agg(["sum", "max", "count"]).reset_index()
    table = users.merge(sums, on="user", how="left").fillna(0)
    table["ratio"] = table.apply(lambda row: row["sum"] / (1 + row["age"]), axis=1)
    return table.sort_values("user")


def train(weights: torch.Tensor, data: torch.Tensor, steps: int) -> None:
    for _ in range(steps):
        batch = data[torch.randint(0, len(data), (256,))]
        weights.grad = None
        loss = (torch.tanh(batch @ weights) - 0.5).pow(2).mean()
        loss.backward()
        dist.all_reduce(weights.grad)
        weights.data -= 0.05 * weights.grad
        time.sleep(0.01)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    weights = torch.randn(4, 16, requires_grad=True)
    train(weights, torch.randn(1000, 4), 30)
    payload = torch.empty(200, 4)
    if dist.get_rank() == 0:
        end = time.monotonic() + SECONDS
        table = features(2000)
        payload = torch.tensor(table[["sum", "max", "count", "ratio"]].to_numpy()[:200] / 1000, dtype=torch.float32)
        while time.monotonic() < end:
            features(20_000)
    dist.broadcast(payload, src=0)
    train(weights, payload, 30)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        table.head(20).round(3).to_csv("out/table.csv", index=False)
        np.savetxt("out/weights.txt", weights.detach().numpy(), fmt="%.3f")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
