"""What comparing replicas costs on a GPU: the sums of hooks/checksums, of a billion parameters and of a small model.

Prints one JSON object. Nothing may wait for the device: torch raises where anything does. A bit is flipped in some
tensors of a second, equal model; which sums differ must tell exactly these.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}

from guardrun.hooks.checksums.checker import ECHO, Checker
from guardrun.hooks.checksums.replicas import ReplicaSet, readable
from guardrun.hooks.checksums.tensor_sums import Sums
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.checksums_page import checksums_name
from guardrun.supervisor.collect.ranks.checksums import ChecksumsReader

EVERY = 500
"""[guards] check_every's default, to which shares refer. A check and its echo are two."""
TOKENS = 8192


class Block(torch.nn.Module):  # type: ignore[misc]  # mypy skips torch
    """As many parameters as a layer of a language model, and as many products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        for layer in self.attention:
            y = layer(y)
        return x + self.down(torch.nn.functional.gelu(self.up(y)))


def billion() -> Any:
    """20 layers of 50 million parameters each."""
    return torch.nn.Sequential(*(Block(2048) for _ in range(20)))


def small() -> Any:
    """26 million parameters in 160 tensors, most of them tiny: as ResNet-50."""
    layers = []
    for _ in range(53):
        layers += [torch.nn.Linear(700, 700, bias=False), torch.nn.LayerNorm(700)]
    return torch.nn.Sequential(*layers)


class Plain(ReplicaSet):
    """All parameters of a model, as if another rank had them as well."""

    def __init__(self, model: Any) -> None:
        super().__init__("a model", [0, 1], 0, 0)
        self._model = model

    def find(self) -> Iterable[tuple[str, Any]] | None:
        return list(self._model.named_parameters())


def make(kind: str, device: Any) -> tuple[Any, Any]:
    """A model of bfloat16 parameters, and an AdamW that has stepped once: the same each time."""
    torch.manual_seed(1)
    model = {"billion": billion, "small": small}[kind]().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device.type == "cuda")
    step(model, optimizer, device, 64)
    return model, optimizer


def step(model: Any, optimizer: Any, device: Any, rows: int) -> None:
    """One of training."""
    width = next(parameter.shape[-1] for parameter in model.parameters())
    x = torch.ones(rows, width, device=device, dtype=torch.bfloat16)
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def time_steps(model: Any, optimizer: Any, device: Any) -> float:
    """Milliseconds that a step takes, the median of ten."""
    took = []
    for _ in range(13):
        began_s = time.perf_counter()
        step(model, optimizer, device, TOKENS)
        wait(device)
        took.append(1e3 * (time.perf_counter() - began_s))
    return statistics.median(took[3:])


def wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def sums_of(model: Any, optimizer: Any) -> list[tuple[str, int]]:
    """Names and sums of parameters and moments."""
    replicas = Plain(model)
    parameters = replicas.parameters() or []
    replicas.adopt(optimizer, {id(one) for _, one in parameters})
    found, _ = readable(torch, [*parameters, *replicas.moments(parameters)])
    sums = Sums(torch, found[0][1].device)
    with torch.no_grad():
        sums.start([(place, tensor) for place, (_, tensor) in enumerate(found)], {})
    wait(found[0][1].device)
    return [(found[place][0], number) for place, number in sorted(sums.read())]


def measure(kind: str, device: Any, sockets: str) -> dict[str, Any]:
    """One model's figures."""
    model, optimizer = make(kind, device)
    step_ms = time_steps(model, optimizer, device)
    del model, optimizer
    model, optimizer = make(kind, device)
    checker = Checker(Rank({"sockets": sockets}, {"billion": 0, "small": 1}[kind]), 2 * ECHO)
    replicas = Plain(model)
    checker.watch(replicas)
    is_cuda = device.type == "cuda"
    wait(device)
    before = sums_of(model, optimizer)
    random_before = torch.cuda.get_rng_state() if is_cuda else torch.get_rng_state()
    host_us: list[float] = []
    idle_us: list[float] = []
    events: list[list[Any]] = []
    used_bytes = 0
    if is_cuda:
        torch.cuda.set_sync_debug_mode("error")
        torch.cuda.reset_peak_memory_stats()
        used_bytes = torch.cuda.memory_allocated()
    for count in range(1, 14 * ECHO + 1):
        checker._sets[0].every = 2 * ECHO  # so close together, checks cost more than their share
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        for event in pair[:1]:
            event.record()
        began_ns = time.perf_counter_ns()
        checker.on_optimizer(optimizer, count)
        took_us = (time.perf_counter_ns() - began_ns) / 1e3
        for event in pair[1:]:
            event.record()
        is_check = replicas.count % ECHO == 0 and replicas.count >= 2 * ECHO
        (host_us if is_check else idle_us).append(took_us)
        if is_check:
            events.append(pair)
            time.sleep(0.05)  # as a step would take time: the sums are read at its end
    if is_cuda:
        torch.cuda.set_sync_debug_mode("default")
        peak_bytes = torch.cuda.max_memory_allocated() - used_bytes
    wait(device)
    random_after = torch.cuda.get_rng_state() if is_cuda else torch.get_rng_state()
    device_ms = [first.elapsed_time(last) for first, last in events] if is_cuda else []
    reader = ChecksumsReader(Path(sockets) / checksums_name({"billion": 0, "small": 1}[kind], 0))
    reader.read(0)
    checks = [check for check in reader.take_checks() if check.kind == 0]
    reader.close()
    checker.close()
    each_ms = max(statistics.median(host_us) / 1e3, statistics.median(device_ms) if device_ms else 0.0)
    return {
        "model": kind,
        "parameters": sum(one.numel() for one in model.parameters()),
        "tensors": len(before),
        "step_ms": round(step_ms, 2),
        "check_host_us": [round(us) for us in host_us],
        "check_device_ms": [round(ms, 3) for ms in device_ms],
        "idle_us": round(statistics.median(idle_us), 2),
        "share_at_default": round(2 * each_ms / (EVERY * step_ms), 6),
        "memory_mib": round(peak_bytes / 2**20, 1) if is_cuda else None,
        "checks_written": len(checks),
        "is_constant": len({check.digests for check in checks if not check.is_echo}) == 1,
        "training_is_the_same": sums_of(model, optimizer) == before and bool((random_before == random_after).all()),
        "flips": flip_some(model, optimizer, before),
    }


def flip_some(model: Any, optimizer: Any, before: list[tuple[str, int]]) -> dict[str, Any]:
    """Flip a bit in twelve tensors of an equal model, one after the other: which sums tell of it."""
    other = copy.deepcopy(model)
    its = torch.optim.AdamW(other.parameters(), 1e-4)
    for one, same in zip(other.parameters(), model.parameters(), strict=True):
        its.state[one] = {name: value.clone() for name, value in optimizer.state[same].items()}
    equal = sums_of(other, its) == before
    dice = random.Random(5)
    parameters = list(other.parameters())
    wrong = 0
    for turn in range(12):
        parameter = dice.choice(parameters)
        tensor = its.state[parameter]["exp_avg"] if turn % 3 == 0 else parameter.data
        bits = tensor.view(-1).view(torch.int16)
        place, mask = dice.randrange(bits.numel()), 1 << dice.randrange(15)
        bits[place] ^= mask
        differing = sum(one != same for one, same in zip(sums_of(other, its), before, strict=True))
        bits[place] ^= mask
        wrong += differing != 1
    return {
        "equal_before": equal,
        "flipped": 12,
        "not_told_as_one": wrong,
        "equal_after": sums_of(other, its) == before,
    }


def main() -> int:
    """Measure and print. Returns 0 where all was as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", choices=["billion", "small"])
    options = parser.parse_args()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as sockets:
        rows = [measure(kind, device, sockets) for kind in ("billion", "small") if options.only in (None, kind)]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    print(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}))
    return 0 if all(row["training_is_the_same"] and not row["flips"]["not_told_as_one"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
