"""Trains on one real GPU without ever waiting for it, and writes what was computed beside what the hooks have read.

step_values.py --out FILE --kind plain [--steps 400]: alone, or below guardrun with one rank. torch raises at whatever
waits for the device (its sync debug mode). The device stands behind a long kernel for a while, and the host goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

HOLD_AT, HOLD_CYCLES = 120, 600_000_000
BAD_AT = 250
WARM_UP = 3
BLOCKS, BLOCK_STEPS = 60, 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=("plain", "scaled"), required=True)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    import torch

    torch.cuda.set_device(0)
    told = train(options.kind, options.steps)
    options.out.write_text(json.dumps(told | {"host_us": measure(options.kind)}))


class Job:
    """A small model, and its step."""

    def __init__(self, kind: str) -> None:
        import torch

        torch.manual_seed(1)
        self.is_scaled = kind == "scaled"
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 8)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, fused=True)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.is_scaled)

    def step(self, batch: Any) -> tuple[Any, Any]:
        """Loss and norm, on the device."""
        import torch

        with torch.autocast("cuda", torch.float16, enabled=self.is_scaled):
            loss = self.model(batch).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach().clone(), norm.clone()


def train(kind: str, steps: int) -> dict[str, Any]:
    """Steps' losses and norms as they were, and as they were read; the parameters at the end, in one hash."""
    import torch

    from guardrun.hooks.patches import device_values

    share, device_values.SHARE = device_values.SHARE, 1e9  # No step is left out for what its copies cost.
    job = Job(kind)
    batches = torch.randn(steps, 32, 64, device="cuda")
    batches[BAD_AT] *= float("inf")
    for _ in range(WARM_UP):  # What is loaded and allocated late may wait.
        job.step(batches[0])
    torch.cuda.synchronize()
    kept = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(steps):
            if number == HOLD_AT:
                torch.cuda._sleep(HOLD_CYCLES)
            kept.append(job.step(batches[number]))
            time.sleep(0.002 * (number < HOLD_AT or number > HOLD_AT + 50))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    job.step(batches[0])  # What has come meanwhile is read after a step.
    device_values.SHARE = share
    truth = [[loss.item(), norm.item()] for loss, norm in kept]
    state = b"".join(each.detach().cpu().numpy().tobytes() for each in job.model.parameters())
    return {"truth": truth, "parameters": hashlib.sha256(state).hexdigest(), "read": read()}


def read() -> list[list[Any]]:
    """The metrics page's records: step, loss, norm, flags. Empty without guardrun."""
    from guardrun.hooks.rank import rank as hooked
    from guardrun.hooks.wire.metrics_page import metrics_name
    from guardrun.supervisor.collect.ranks.metrics import MetricsReader

    active: Any = hooked.active
    if active is None:
        return []
    reader = MetricsReader(os.path.join(active.sockets, metrics_name(active.attempt, active.global_rank)))
    try:
        return [[one.step - WARM_UP, one.loss, one.grad_norm, one.flags] for one in reader.records()]
    finally:
        reader.close()


def measure(kind: str) -> dict[str, float]:
    """Microseconds of a step on the host, where launching takes all of its time: blocks with the numbers read, without.

    Empty without guardrun.
    """
    import torch

    from guardrun.hooks.rank import rank as hooked

    active: Any = hooked.active
    if active is None:
        return {}
    job, batch, metrics = Job(kind), torch.randn(32, 64, device="cuda"), active.metrics
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * BLOCKS):
        is_read = number % 4 in (0, 3)
        active.metrics = metrics if is_read else None
        began_s = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            job.step(batch)
        took[is_read].append(1e6 * (time.perf_counter() - began_s) / BLOCK_STEPS)
        torch.cuda.synchronize()
    ratios = [1 - off / on for on, off in zip(took[True], took[False], strict=True)]
    return {"with": median(took[True]), "without": median(took[False]), "share": median(ratios)}


if __name__ == "__main__":
    main()
