"""Trains on the emulated device without ever waiting for it; alone. argv: steps, where to write what was seen, and
whether all numbers are to be finite.

Losses and norms as they really were are kept on the device, and read at the end. From step HOLD_FROM to HOLD_TO the
device stands still, and the host goes on. Its parameters are summed as those of replicas are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from guardrun.hooks.checksums.checker import ECHO, Checker
from guardrun.hooks.checksums.replicas import ReplicaSet
from guardrun.hooks.checksums.tensor_sums import Sums
from guardrun.hooks.guards import nonfinite_origin
from guardrun.hooks.patches import device_values
from guardrun.hooks.rank import rank as ranks
from tests.emu import device as emu

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
HOLD_FROM, HOLD_TO = 20, 30
NAN_AT = 40 if len(sys.argv) < 4 else 0
if not NAN_AT:
    # Whether all is finite takes an abs(), for which this device is waited for, and no real one.
    nonfinite_origin.Origin._flag = lambda self, tensors: None  # type: ignore[method-assign]
device_values.SHARE = 1e9  # however long the copies take on a busy machine, no step is left out for it


class Everything(ReplicaSet):
    """A model's parameters, as if another rank had them as well."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__("a model", [0, 1], 0, 0)
        self._model = model

    def find(self) -> Iterable[tuple[str, torch.nn.Parameter]] | None:
        return list(self._model.named_parameters())


torch.manual_seed(1)
torch.set_num_threads(1)
emu.use()
model = torch.nn.Linear(8, 8).to("emu")
optimizer = torch.optim.SGD(model.parameters(), 0.05)
batches = [torch.randn(4, 8).to("emu") for _ in range(STEPS)]
if NAN_AT:
    batches[NAN_AT - 1] = batches[NAN_AT - 1] * float("nan")
emu.synchronize()
torch.set_default_device("emu")  # a pinned tensor must be asked for on the host
kept = []
held: list[list[torch.Tensor]] = []
active = ranks.active
if active is not None:
    active.checksums = checker = Checker(active, 2 * ECHO)
    checker.watch(Everything(model))
waits = emu.count_waits()
for number, batch in enumerate(batches, 1):
    if number == HOLD_FROM:
        emu.hold()
    if number == HOLD_TO:
        emu.release()
    loss = model(batch).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    kept.append((loss.detach().clone(), norm.clone()))
    held.append([parameter.detach().clone() for parameter in model.parameters()])
    time.sleep(0.01)
waits = emu.count_waits() - waits
emu.synchronize()
optimizer.step()  # what has come meanwhile is read after a step
truth = [[loss.item(), norm.item()] for loss, norm in kept]


def sums_of(tensors: list[torch.Tensor]) -> list[int]:
    """As the host has them."""
    sums = Sums(torch, torch.device("cpu"), joins=True)
    with torch.no_grad():
        sums.start([(place, tensor.cpu()) for place, tensor in enumerate(tensors)], {})
    return [number for _, number in sorted(sums.read())]


sums = [sums_of(tensors) for tensors in held]
zeros = active.origin._zeros if active is not None and active.origin is not None else None  # type: ignore[attr-defined]
lives = [life.input.alive for lives in zeros._lives.values() for life in lives] if zeros is not None else []
words = {
    "lives": lives,
    "waits": waits,
    "sums": sums,
    "truth": truth,
    "parameters": [each.tolist() for each in model.parameters()],
}
OUT.write_text(json.dumps(words))
os._exit(0)
