"""Chunks of steps on demand, so that two launchers' jobs can take turns on one machine."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def stay_on(core: int) -> None:
    """Have all threads of this process run on one core; -1: anywhere."""
    if core >= 0:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {core})


def take_turns(run: Callable[[int], float], folder: Path, steps: int, core: int) -> None:
    """Run so many steps for each byte `c` from the FIFO `go` in that folder, and write to `done` what they took.

    That is a line of JSON, an empty object once it is ready: `step_s`, and `cpu_s`, the CPU time of all ranks a step,
    all their threads. Any other byte is the end. run: takes a number of steps, returns the seconds that each took on
    average. core: where all threads of all ranks run; -1: anywhere. All ranks call this; rank 0 reads and writes.
    """
    is_first = os.environ["RANK"] == "0"
    go, done = (os.open(folder / name, os.O_RDWR) for name in ("go", "done")) if is_first else (-1, -1)
    stay_on(core)
    result: dict[str, float] = {}
    while True:
        if is_first:
            os.write(done, json.dumps(result).encode() + b"\n")
        order = torch.tensor([float(is_first and os.read(go, 1) == b"c")])
        dist.broadcast(order, 0)
        if not order.item():
            return
        began_s = time.process_time()
        step_s = run(steps)
        cpu_s = torch.tensor([time.process_time() - began_s], dtype=torch.float64)
        dist.all_reduce(cpu_s)
        result = {"step_s": step_s, "cpu_s": cpu_s.item() / steps}
