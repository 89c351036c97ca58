"""What reading a device's allocator costs a rank, and that it waits for nothing; started by check.py.

Into `memory.json`: microseconds of a reading and of its parts, with thousands of blocks in use and as many free; how
long one takes while a kernel of seconds runs, with torch's own check for synchronisations on; whether a capture of a
graph survives one, though none is made in captures; and what the page says.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RANK", "0")

from guardrun.hooks.patches.device_memory import FIRST_STEPS, DeviceMemory
from guardrun.hooks.rank.allocator import read_free, read_stats
from guardrun.hooks.rank.rank import Rank
from guardrun.hooks.wire.memory_page import memory_name
from guardrun.supervisor.collect.ranks.device_memory import DeviceMemoryReader

CALLS = 200
BLOCKS = 8000
SLEEP_CYCLES = 6_000_000_000
"""Some three seconds."""


def main(out: Path) -> None:
    import torch

    device = torch.device("cuda", 0)
    kept = fill(device)
    weights = torch.nn.Linear(512, 512, device=device)
    optimizer = torch.optim.SGD(weights.parameters(), 1e-3)
    rank = Rank({"sockets": str(out)}, 0)
    memory = rank.memory = DeviceMemory(rank)
    for _ in range(FIRST_STEPS + 3):
        memory.on_step(optimizer, time.monotonic_ns())
    reader = DeviceMemoryReader(out / memory_name(0, 0))
    told = reader.take_report()
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "blocks": len(kept),
        "page": None if told is None else {name: getattr(told, name) for name in told.__struct_fields__},
        "torch_says": {
            "allocated": torch.cuda.memory_allocated(0),
            "reserved": torch.cuda.memory_reserved(0),
            "free_total": torch.cuda.mem_get_info(0),
        },
        "reading_us": times(lambda: memory.on_step(optimizer, time.monotonic_ns())),
        "stats_us": times(lambda: read_stats(torch.cuda, 0)),
        "free_us": times(lambda: read_free(torch.cuda, 0)),
        "flat_stats_us": times(lambda: torch.cuda.memory_stats(0)),
        "pending": pending(lambda: memory.on_step(optimizer, time.monotonic_ns())),
        "is_on": rank.memory is memory,
        "capture": captured(device),
    }
    reader.close()
    (out / "memory.json").write_text(json.dumps(found, indent=1))
    reading, waits = found["reading_us"], found["pending"]
    print(
        f"{reading['median']:.1f} us a reading (p99 {reading['p99']:.1f}, {found['stats_us']['median']:.1f} of the "
        f"allocator, {found['free_us']['median']:.1f} of the driver); {waits['took_us']:.0f} us beside a kernel of "
        f"{waits['kernel_s']:.1f} s, which was {'still running' if waits['was_running'] else 'OVER'}; capture: "
        f"{found['capture']}"
    )


def fill(device: Any) -> list[Any]:
    """Blocks of all sizes, after as many others were freed between them."""
    import torch

    chance = random.Random(1)
    sizes = [int(2 ** chance.uniform(9, 22)) for _ in range(2 * BLOCKS)]
    blocks = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
    return blocks[::2]


def times(call: Callable[[], object]) -> dict[str, float]:
    """Of CALLS calls, in microseconds."""
    took = []
    for _ in range(CALLS):
        began_ns = time.perf_counter_ns()
        call()
        took.append((time.perf_counter_ns() - began_ns) / 1000)
    took.sort()
    return {"median": statistics.median(took), "p99": took[int(0.99 * CALLS)], "most": took[-1]}


def pending(call: Callable[[], object]) -> dict[str, Any]:
    """While a kernel runs: how long a call takes, whether torch says that it synchronises, and whether it waited."""
    import torch

    torch.cuda.synchronize()
    done = torch.cuda.Event()
    began_s = time.monotonic()
    torch.cuda._sleep(SLEEP_CYCLES)
    done.record()
    torch.cuda.set_sync_debug_mode("error")
    took = []
    try:
        for _ in range(20):
            began_ns = time.perf_counter_ns()
            call()
            took.append((time.perf_counter_ns() - began_ns) / 1000)
        was_running = not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return {"took_us": max(took), "was_running": was_running, "kernel_s": time.monotonic() - began_s}


def captured(device: Any) -> str:
    """What becomes of a capture in its strictest mode in which the allocator and the driver are asked."""
    import torch

    x = torch.ones(16, device=device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            y = x + 1
            read_stats(torch.cuda, 0)
            free, _ = read_free(torch.cuda, 0)
        graph.replay()
        torch.cuda.synchronize()
        return f"unharmed, sum {y.sum().item():.0f}" + ("" if free >= 0 else ", free memory not told")
    except RuntimeError as error:
        return f"broken: {str(error).splitlines()[0]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
