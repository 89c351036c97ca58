"""A training on a real GPU whose numbers go wrong, or that only looks as if they might; started by guards.py.

What a rank ends with goes to `OUT/end_rankN.json`: a digest of its parameters, whether they are finite, and the seconds
of its steps. torch raises at whatever waits for the device (its sync debug mode), unless `--may-wait`.

Attempts after the first suffer no fault.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from guardrun.hooks import should_checkpoint

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
IS_FIRST = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
WIDTH, BATCH = 256, 32
MIB = 1 << 20
LEAK_MIB, ROOM_MIB = 8, 4096
"""What the last rank keeps of each step, and what each may have of its device."""
WAYS = ("ddp", "fsdp", "scaled", "graph", "compiled")

parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=WAYS, required=True)
parser.add_argument("--fault", choices=("none", "nan", "dead", "blank", "leak"), default="none")
parser.add_argument("--at", type=int, default=67, help="the step of the fault: of a batch, or from there on")
parser.add_argument("--leave-out", type=int, default=0, help="a step whose optimizer is not called")
parser.add_argument("--steps", type=int, default=160)
parser.add_argument("--step-s", type=float, default=0.0)
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument("--resume", default="")
parser.add_argument("--may-wait", action="store_true")
parser.add_argument("--asked", action="store_true", help="save where should_checkpoint() says so")
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()


class Model(torch.nn.Module):  # type: ignore[misc]  # whose types are not known here
    """An MLP whose middle layer can be made to die: its bias falls, and ReLU lets nothing through."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.middle = torch.nn.Linear(WIDTH, WIDTH)
        self.relu = torch.nn.ReLU()
        self.last = torch.nn.Linear(WIDTH, 8)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = torch.nn.functional.gelu(self.first(batch))
        hidden = hidden + 0.1 * self.relu(self.middle(hidden))
        out: torch.Tensor = self.last(hidden)
        return out


def make_batches(device: torch.device) -> Callable[[int], torch.Tensor]:
    """A batch for each step, the same in each attempt; made on the device, so that nothing waits for it."""
    generator = torch.Generator(device)

    def batch_of(step: int) -> torch.Tensor:
        generator.manual_seed(WORLD * step + RANK)
        if options.fault == "blank":
            return torch.zeros(BATCH, WIDTH, device=device)
        batch = torch.randn(BATCH, WIDTH, device=device, generator=generator)
        if options.fault == "nan" and IS_FIRST and step == options.at and RANK == WORLD - 1:
            batch *= math.nan
        return batch

    return batch_of


def wrap(model: Model, device: torch.device) -> Any:
    if options.way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cuda", (WORLD,))
        for layer in (model.first, model.middle):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    if options.way == "compiled":
        return torch.compile(model, mode="reduce-overhead")
    if WORLD > 1:
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[device])
    return model


def set_up() -> torch.device:
    """The rank's device, and its process group."""
    if os.environ.get("GPU_CHECK_SHARED"):
        os.environ["NCCL_HOSTID"] = f"host-{RANK}"
    device = torch.device("cuda", RANK % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if WORLD > 1:
        dist.init_process_group("nccl")
    if options.fault == "leak":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(ROOM_MIB * MIB / total)
    torch.manual_seed(1)
    return device


def main() -> None:
    device = set_up()
    inner = Model().to(device)
    model = wrap(inner, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True, capturable=options.way == "graph")
    scaler = torch.amp.GradScaler("cuda", enabled=options.way == "scaled")
    first = 1
    if options.resume:
        saved = torch.load(options.resume, map_location=device)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    batch_of = make_batches(device)

    def step_on(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=options.way == "scaled"):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        if step != options.leave_out:
            scaler.step(optimizer)
            scaler.update()

    take = capture(model, optimizer, device) if options.way == "graph" else step_on
    took_s, kept = [], []
    for step in range(first, options.steps + 1):
        if step == first + 9 and not options.may_wait:
            torch.cuda.set_sync_debug_mode("error")
        began_s = time.perf_counter()
        if options.fault == "dead" and step == options.at:
            with torch.no_grad():
                inner.middle.bias.fill_(-1e6)
        take(batch_of(step))
        took_s.append(time.perf_counter() - began_s)
        if options.fault == "leak" and RANK == WORLD - 1:
            kept.append(torch.empty(LEAK_MIB * MIB, dtype=torch.uint8, device=device))
        is_due = options.save_every and step % options.save_every == 0
        if is_due or (options.asked and should_checkpoint()):
            if RANK == 0:
                save(inner, optimizer, step)
            dist.barrier()
        time.sleep(options.step_s)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    write_end(model, sorted(took_s))
    if WORLD > 1:
        dist.destroy_process_group()


def capture(model: Any, optimizer: Any, device: torch.device) -> Callable[[torch.Tensor], None]:
    """The whole step as a CUDA graph, the optimizer's with it."""
    held = torch.zeros(BATCH, WIDTH, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(held).square().mean().backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(batch: torch.Tensor) -> None:
        held.copy_(batch)
        graph.replay()

    return replay


def save(inner: Model, optimizer: Any, step: int) -> None:
    state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, options.out / f"ckpt_{step}.pt")


def write_end(model: Any, took_s: list[float]) -> None:
    digest, is_finite = hashlib.sha256(), True
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        is_finite = is_finite and bool(torch.isfinite(whole).all())
        digest.update(whole.detach().cpu().numpy().tobytes())
    told = {"parameters": digest.hexdigest(), "is_finite": is_finite, "step_us": 1e6 * took_s[len(took_s) // 2]}
    (options.out / f"end_rank{RANK}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
