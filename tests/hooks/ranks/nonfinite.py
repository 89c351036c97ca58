"""A rank that trains some steps in several ways; argv: where to write the parameters it ends with, as bytes.

In each way but the first something is not finite at one step, in a module or in its backward pass. Then another model
is trained, of which a ReLU dies, and whose loss is large in the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

STEPS, BAD = 6, 3
DIES_AT, GROWS_AT, LONG = 100, 695, 725
torch.set_num_threads(1)
now = {"way": "", "step": 0}


def is_now(way: str) -> bool:
    return now == {"way": way, "step": BAD}


class Ratio(nn.Module):  # type: ignore[misc]  # mypy skips torch
    """Divides by what may be 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 0.0 if is_now("output") else x / 2.0


class Root(nn.Module):  # type: ignore[misc]
    """Its slope at 0 is infinite."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"root": (x * 0.0).abs().sqrt() if is_now("gradient") else (x.abs() + 1.0).sqrt()}


class Net(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(nn.Linear(4, 8), Ratio(), nn.Linear(8, 4))
        self.head = Root()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(x))["root"].mean()
        return result


model = Net()
optimizer = torch.optim.SGD(model.parameters(), 0.01)


def train(way: str) -> None:
    for step in range(1, STEPS + 1):
        now.update(way=way, step=step)
        with torch.no_grad():  # An evaluation's numbers are nobody's.
            model(torch.full((2, 4), float("nan")))
        x = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        loss = model(x * float("inf")) if is_now("data") else model(x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if is_now(way) and way != "fine":
            for parameter in model.parameters():
                parameter.grad = None  # or nothing would be finite from then on
        optimizer.step()
        optimizer.zero_grad()


def kill() -> nn.Module:
    """A model whose ReLU gives out nothing from some step on."""
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for step in range(1, LONG + 1):
        if step == DIES_AT:
            net[0].bias.data.fill_(-1e3)
        loss = net(torch.randn(16, 16, generator=torch.Generator().manual_seed(step)) + 1).mean()
        (loss if step < GROWS_AT else 50 * loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net


for each in ("fine", "output", "gradient", "data"):
    train(each)
parameters = [*model.parameters(), *kill().parameters()]
Path(sys.argv[1]).write_bytes(b"".join(parameter.detach().numpy().tobytes() for parameter in parameters))
