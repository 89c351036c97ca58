"""A rank that trains in several ways, one after the other; argv: where to write the parameters it ends with, as bytes.

Prints as JSON what each way really computed: a list of [loss, norm].
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from guardrun import hooks
from guardrun.hooks.rank import rank as ranks

STEPS = 12
torch.manual_seed(5)
torch.set_num_threads(1)
model: torch.nn.Module
expected: list[list[Any]]


def batch(number: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def loss_of(number: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(number)).square().mean()
    return loss


def plain(optimizer: torch.optim.Optimizer) -> None:
    for number in range(STEPS):
        loss = loss_of(number)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(model.parameters(), 0.5).item()
        optimizer.step()
        optimizer.zero_grad()
        expected.append([loss.item(), norm])


def moded(optimizer: torch.optim.Optimizer) -> None:
    """With a default device, which is a mode of torch's: it calls functions a second time."""
    counted = ranks.active.pace.backwards if ranks.active is not None else 0
    torch.set_default_device("cpu")
    plain(optimizer)
    torch.set_default_device(None)
    assert ranks.active is None or ranks.active.pace.backwards == counted + STEPS, "each backward pass is one"


def unclipped(optimizer: torch.optim.Optimizer) -> None:
    for number in range(STEPS):
        loss = loss_of(number)
        if number >= 7:
            loss = loss * (float("nan") if number < 9 else float("inf"))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        expected.append([loss.item(), None])


def alternating(optimizer: torch.optim.Optimizer) -> None:
    """Two optimizers, as a GAN has them, of which one steps more often: a step is one of the first."""
    other = torch.optim.SGD(model.parameters(), 1e-3)
    for number in range(STEPS):
        first = loss_of(number)
        first.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        expected.append([first.item(), None])
        if number % 2 and number < STEPS - 1:
            second = loss_of(100 + number)
            second.backward()  # type: ignore[no-untyped-call]
            other.step()
            expected.append([second.item(), None])
        optimizer.zero_grad()
    # The other one's loss is in the step that ends next.
    for place in range(len(expected) - 1, 0, -1):
        if place % 3 == 2:
            expected[place + 1][0] += expected.pop(place)[0]


def accumulate(optimizer: torch.optim.Optimizer) -> None:
    for number in range(STEPS):
        parts = []
        for part in range(3):
            loss = loss_of(10 * number + part) / 3
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        expected.append([sum(parts), None])


def amp(optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=1000)
    stepped = 0
    for number in range(STEPS):
        loss = loss_of(number) * 16
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 0.5).item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        is_skipped = not norm < float("inf")
        expected.append([loss.item(), norm])
        stepped += not is_skipped
    assert 0 < stepped < STEPS, stepped


def said(optimizer: torch.optim.Optimizer) -> None:
    for number in range(STEPS):
        loss = loss_of(number)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number == 0:  # that the script says it is not known before
            expected.append([loss.item(), None])
        hooks.metrics(loss=float(number), grad_norm=torch.tensor([number / 2]))
        optimizer.zero_grad()
        expected.append([float(number), number / 2])


def others(optimizer: torch.optim.Optimizer) -> None:
    """What is none of this rank's steps: other threads' losses, several numbers at once, given gradients, a graph."""

    def aside() -> None:
        (torch.nn.Linear(2, 2)(torch.randn(3, 2)).sum() * 1000).backward()

    for number in range(STEPS):
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()
        with torch.no_grad():
            model(batch(number))
        each = model(batch(number)).square()
        each.backward(torch.ones_like(each) / each.numel())
        optimizer.step()
        optimizer.zero_grad()


def compiled(optimizer: torch.optim.Optimizer) -> None:
    def whole(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        return loss

    def clipped() -> torch.Tensor:
        return clip_grad_norm_(model.parameters(), 0.5)

    step = torch.compile(whole, backend="aot_eager", fullgraph=True)
    clip = torch.compile(clipped, backend="eager", fullgraph=True)
    for number in range(STEPS):
        loss = step(batch(number))
        loss.backward()
        clip()
        optimizer.step()
        optimizer.zero_grad()
        expected.append([loss.item(), None])


class Foreign:
    """An optimizer that is none of torch's kind: nobody hears of its steps, which are none that were left out."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.param_groups = optimizer.param_groups
        self.step = self.descend  # as a proxy has it: its class has none

    def descend(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= 1e-3 * parameter.grad


def foreign(optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    own = Foreign(optimizer)
    for number in range(STEPS):
        scaler.scale(loss_of(number)).backward()  # type: ignore[no-untyped-call]
        scaler.step(own)  # type: ignore[arg-type]
        scaler.update()
        optimizer.zero_grad()


told = {}
with open(sys.argv[1], "wb") as file:
    for train in (plain, moded, unclipped, accumulate, alternating, amp, others, compiled, said, foreign):
        for is_fused in (False, True) if train is amp else (False,):
            model, expected = torch.nn.Linear(8, 8), []
            train(torch.optim.AdamW(model.parameters(), 1e-2, fused=is_fused))
            told[f"{train.__name__}{' fused' if is_fused else ''}"] = expected
            for parameter in model.parameters():
                file.write(parameter.detach().numpy().tobytes())
print(json.dumps(told))
