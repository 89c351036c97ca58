"""What device timing sums up, layout by layout, while the devices are alike and while rank 1's is slower; or its cost.

timed.py --out FOLDER
timed.py --blocks 100 --layouts fsdp     # steps with it and without take turns; on rank 0's stdout
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch.distributed as dist

from guardrun import hooks
from guardrun.hooks.patches import device_timing, steps
from guardrun.hooks.patches.device_timing import FSDP1, FSDP2
from guardrun.hooks.rank import rank as hooked
from tests.emu import device as emu
from tests.emu.scripts.train import LAYOUTS

KERNEL_S = 0.04
SLOW_S = 0.3
PARTS = 3
PART_STEPS = 5
WARM_UP = 4
BLOCK_STEPS = 20
WAITS = 200


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layouts", default="fsdp,tensor,pipeline")
    parser.add_argument("--blocks", type=int, default=0, help="measure what it costs, in so many of each kind")
    parser.add_argument("--kernel-s", type=float, default=KERNEL_S)
    parser.add_argument("--out", default="")
    return parser.parse_args()


def train(job: Any, count: int, kernel_s: float) -> None:
    """The host is some steps ahead of the device at most, as where a loss is read now and then."""
    for number in range(count):
        emu.kernel(kernel_s)
        job.step(number)
        hooks.step()
        if number % 5 == 4:
            emu.synchronize()


def sums_of(timer: Any, job: Any, kernel_s: float) -> list[int]:
    """Taken bit by bit: a step that the machine held up takes what was summed up before it along."""
    train(job, WARM_UP, kernel_s)
    emu.synchronize()
    timer.pop_sums()
    sums = [0] * 5
    for _ in range(PARTS):
        train(job, PART_STEPS, kernel_s)
        emu.synchronize()
        sums = [before + more for before, more in zip(sums, timer.pop_sums(), strict=True)]
    return sums


def measure(timer: Any, job: Any, kernel_s: float, blocks: int) -> dict[str, Any]:
    """Milliseconds a step on the clock, with it and without: medians, and of the blocks that others disturbed least.

    Also quartiles of the ratio, block by block, and the microseconds of CPU that a wait costs.
    """
    train(job, 100, kernel_s)
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * blocks):
        is_timed = number % 4 in (0, 3)
        timer.is_off = not is_timed
        train(job, 2, kernel_s)
        emu.synchronize()
        began_s = time.perf_counter()
        train(job, BLOCK_STEPS, kernel_s)
        emu.synchronize()
        took[is_timed].append(1000 * (time.perf_counter() - began_s) / BLOCK_STEPS)
        if not is_timed:
            timer.stop()
    ratios = sorted(on / off for on, off in zip(took[True], took[False], strict=True))
    timer.is_off = False
    return {
        "step_ms": [round(median(took[is_timed]), 3) for is_timed in (True, False)],
        "fastest_ms": [round(sorted(took[is_timed])[blocks // 10], 3) for is_timed in (True, False)],
        "ratio": [round(ratios[len(ratios) * place // 100], 4) for place in (25, 50, 75)],
        "wait_us": round(median(cost_us(timer) for _ in range(9)), 2),
    }


def cost_us(timer: Any) -> float:
    """What a wait that is timed, and read, costs this thread."""
    wait = timer.wrap(lambda: None)
    while timer._step is None:
        timer.on_step()
        emu.synchronize()
    began_s = time.thread_time()
    for _ in range(WAITS):
        wait()
    timer.on_step()
    cost_s = time.thread_time() - began_s
    emu.synchronize()
    began_s = time.thread_time()
    timer.on_step()
    return 1e6 * (cost_s + time.thread_time() - began_s) / WAITS


def timed_functions() -> list[str]:
    """Of this torch's own: those that are timed where they wait."""
    import torch.distributed._functional_collectives as functional
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group, _fsdp_state

    places = [(functional, "wait_tensor"), *((_runtime_utils, name) for name in FSDP1)]
    for module in (_fsdp_param_group, _fsdp_state):
        places += [(getattr(module, kind), name) for kind in FSDP2 if hasattr(module, kind) for name in FSDP2[kind]]
    return [name for place, name in places if getattr(place, name).__code__.co_filename == device_timing.__file__]


def main() -> None:
    arguments = parse()
    emu.use()
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    active: Any = hooked.active
    timer = active.device_timer
    steps.PUBLISH_NS = 1 << 60
    if not arguments.blocks:
        device_timing.SHARE = 1.0  # a busy machine makes a step's timing dear, and then few steps would be timed
    told: dict[str, Any] = {}
    functions = timed_functions()
    for name in arguments.layouts.split(","):
        job = LAYOUTS[name]()
        if arguments.blocks:
            told[name] = measure(timer, job, arguments.kernel_s, arguments.blocks)
            continue
        alike = sums_of(timer, job, arguments.kernel_s)
        told[name] = [alike, sums_of(timer, job, arguments.kernel_s + (SLOW_S if rank == 1 else 0.0))]
    if arguments.out:
        Path(arguments.out, f"rank{rank}.json").write_text(json.dumps({"layouts": told, "functions": functions}))
    elif rank == 0:
        print(json.dumps(told), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
