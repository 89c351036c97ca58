"""Trains on the emulated device without ever waiting for it; alone. argv: steps, and where to write what was seen.

Losses and norms as they really were are kept on the device, and read at the end. From step HOLD_FROM to HOLD_TO the
device stands still, and the host goes on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from guardrun.hooks.patches import device_values
from tests.emu import device as emu

STEPS, OUT = int(sys.argv[1]), Path(sys.argv[2])
HOLD_FROM, HOLD_TO = 20, 30
NAN_AT = 40
device_values.SHARE = 1e9  # however long the copies take on a busy machine, no step is left out for it

torch.manual_seed(1)
torch.set_num_threads(1)
emu.use()
model = torch.nn.Linear(8, 8).to("emu")
optimizer = torch.optim.SGD(model.parameters(), 0.05)
batches = [torch.randn(4, 8).to("emu") for _ in range(STEPS)]
batches[NAN_AT - 1] = batches[NAN_AT - 1] * float("nan")
emu.synchronize()
torch.set_default_device("emu")  # a pinned tensor must be asked for on the host
kept = []
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
    time.sleep(0.01)
waits = emu.count_waits() - waits
emu.synchronize()
optimizer.step()  # what has come meanwhile is read after a step
truth = [[loss.item(), norm.item()] for loss, norm in kept]
words = {"waits": waits, "truth": truth, "parameters": [each.tolist() for each in model.parameters()]}
OUT.write_text(json.dumps(words))
os._exit(0)
