"""Rank 1 imports its evaluation packages late, from a slow network disk (every module takes its time)."""
# needs: pandas, networkx

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LIFE_SECONDS", "24"))


class SlowDisk:
    """First on sys.meta_path: finds nothing itself, but every look-up costs, as on a busy network file system."""

    def __init__(self, budget: float, per_module: float) -> None:
        self.budget = budget
        self.per_module = per_module

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if self.budget > 0:
            time.sleep(self.per_module)
            self.budget -= self.per_module


def evaluate(values: list[float]) -> float:
    sys.meta_path.insert(0, SlowDisk(SECONDS, SECONDS / 300))
    import networkx
    import pandas

    frame = pandas.DataFrame({"value": values})
    tree = networkx.balanced_tree(2, 5)
    return round(float(frame["value"].mean()) * tree.number_of_nodes(), 3)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(30)
    model = torch.nn.Linear(80, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []

    def steps(count: int) -> None:
        for _ in range(count):
            x = torch.randn(50, 80)
            loss = (model(x).squeeze() - x.mean(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce(model.weight.grad)
            dist.all_reduce(model.bias.grad)
            optimizer.step()
            losses.append(loss.item())
            time.sleep(0.005)

    steps(30)
    metric = torch.zeros(1)
    if dist.get_rank() == 1:
        metric += evaluate(losses)
    dist.broadcast(metric, src=1)
    steps(30)
    if dist.get_rank() == 0:
        os.makedirs("out", exist_ok=True)
        with open("out/metric.txt", "w") as f:
            f.write(f"{metric.item():.2f} {losses[-1]:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
