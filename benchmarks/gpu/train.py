"""A training over NCCL that suffers what `--fault` names in its last rank at step `--at`; started by check.py.

Where there are fewer GPUs than ranks they share one: NCCL refuses that of ranks of one host, so each says that it is on
a host of its own, and they talk by sockets over loopback.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

MIB = 1 << 20
HOLDS = ("leak", "fragment", "tidy")
HELD_BYTES = 4 << 30
"""What a rank that holds may reserve: so they need not fill the device to come near to its end."""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BLOCK_KERNEL_S = 0.005
LAG_KERNEL_S = 0.05
SLEEP_CYCLES_A_S = 2_000_000_000
"""torch.cuda._sleep counts cycles; a GPU of our days runs at about 2 GHz."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--at", type=int, default=30)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-s", type=float, default=0.1)
    parser.add_argument("--timeout-s", type=float, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if os.environ.get("GPU_CHECK_SHARED"):
        os.environ["NCCL_HOSTID"] = f"host-{RANK}"

    import torch
    import torch.distributed as dist

    device = torch.device("cuda", RANK % torch.cuda.device_count())
    torch.cuda.set_device(device)
    timeout = {"timeout": timedelta(seconds=options.timeout_s)} if options.timeout_s else {}
    dist.init_process_group("nccl", **timeout)
    if options.fault == "dump":
        record(device, options.out)
        return
    communicate_unevenly(device)
    if options.fault == "straggler":
        lag(device, options)
        return
    by_sockets = dist.new_group(backend="gloo") if options.fault == "sync" else None
    if options.fault in HOLDS:
        torch.cuda.set_per_process_memory_fraction(HELD_BYTES / torch.cuda.get_device_properties(device).total_memory)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512, device=device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    began_s = time.monotonic()
    for step in range(options.steps):
        if step == options.at:
            note(options.out, f"fault {time.time():.3f}")
            suffer(options.fault, device)
            if by_sockets is not None:
                dist.barrier(by_sockets)
        optimizer.zero_grad()
        loss = model(torch.ones(8, 512, device=device)).sum()
        loss.backward()
        optimizer.step()
        hold(options.fault, step, model, device)
        if options.step_s:
            loss.item()
            time.sleep(options.step_s)
    torch.cuda.synchronize()
    note(options.out, f"finished {time.monotonic() - began_s:.3f}")
    dist.destroy_process_group()


kept: list[Any] = []
streams: list[Any] = []


def hold(fault: str, step: int, model: Any, device: Any) -> None:
    """What the last rank comes to hold of its device in each step; and the other one, which is only an evaluation."""
    import torch

    if fault not in HOLDS:
        return
    if RANK < WORLD - 1 or fault == "tidy":
        # For half a second of four: larger steps, whose outputs are kept until it ends.
        if step % 200 < 25:
            kept.append(torch.empty(24 * MIB, dtype=torch.uint8, device=device))
        elif step % 200 == 25:
            kept.clear()
            torch.cuda.empty_cache()
    elif fault == "leak":
        kept.append(model.module(torch.ones(1024, 512, device=device)).sum())
    elif fault == "fragment":
        # Two streams by turns: neither's blocks serve the other's tensors, and all are given back for them each time.
        streams[:] = streams or [torch.cuda.Stream(), torch.cuda.Stream()]
        with torch.cuda.stream(streams[step // 4 % 2]):
            [torch.empty(260 * MIB, dtype=torch.uint8, device=device) for _ in range(10)]


def note(out: Path, line: str) -> None:
    """Add a line to what this rank noted."""
    with (out / f"rank{RANK}.txt").open("a") as file:
        file.write(line + "\n")


def suffer(fault: str, device: Any) -> None:
    """The fault in the last rank; `busy` and `runahead` befall all, and pass."""
    import torch

    is_last = RANK == WORLD - 1
    if fault == "busy":
        torch.cuda._sleep(100 * SLEEP_CYCLES_A_S)
    if not is_last:
        return
    if fault == "sleep":
        time.sleep(3600)
    elif fault == "spin":
        while True:
            pass
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "gil":
        ctypes.PyDLL(None).sleep(3600)
    elif fault in ("stuck", "sync"):
        torch.cuda._sleep(1800 * SLEEP_CYCLES_A_S)
        if fault == "sync":
            torch.cuda.synchronize()
    elif fault == "assert":
        torch.arange(4, device=device)[torch.tensor([99], device=device)]
    elif fault == "oom":
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def lag(device: Any, options: argparse.Namespace) -> None:
    """FSDP2, where only `device_timing` can tell who lags: the last rank's device takes longer from step `--at` on.

    Before that, blocks of steps with the timing and without, if it is on: milliseconds a step, and their ratio.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).to(device)
    mesh = init_device_mesh("cuda", (WORLD,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(layers, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    batch = torch.randn(64, 1024, device=device)

    def step(kernel_s: float) -> None:
        torch.cuda._sleep(int(kernel_s * SLEEP_CYCLES_A_S))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    from benchmarks.gpu.blocks import compare_blocks
    from guardrun.hooks.rank import rank as hooked

    active: Any = hooked.active
    if active is not None and active.device_timer is not None:
        told = compare_blocks(active.device_timer, lambda: step(BLOCK_KERNEL_S))
        (out := options.out / f"timing_rank{RANK}.json").write_text(json.dumps(told))
        note(options.out, f"{out.name} {json.dumps(told)}")
    began_s = time.monotonic()
    for number in range(options.steps):
        is_slow = number >= options.at and RANK == WORLD - 1
        if number == options.at:
            note(options.out, f"fault {time.time():.3f}")
        step(LAG_KERNEL_S * (3 if is_slow else 1))
        if number % 5 == 4:
            torch.cuda.synchronize()
    note(options.out, f"finished {time.monotonic() - began_s:.3f}")
    dist.destroy_process_group()


def communicate_unevenly(device: Any) -> None:
    """Collectives whose parts the flight recorder never calls completed."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(16, device=device)
    for _ in range(2):
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, ones, (RANK + 1) % WORLD),
                dist.P2POp(dist.irecv, torch.empty_like(ones), (RANK - 1) % WORLD),
            ]
        )
        for work in works:
            work.wait()
    dist.all_gather(
        [torch.empty(5 + rank, device=device) for rank in range(WORLD)], torch.ones(5 + RANK, device=device)
    )


def record(device: Any, out: Path) -> None:
    """Issue collectives of every kind, then write what the recorder says of them, and what asking costs."""
    import torch
    import torch.distributed as dist

    ones = torch.ones(16, device=device)
    for _ in range(3):
        dist.all_reduce(ones)
    communicate_unevenly(device)
    if RANK == 0:
        dist.send(ones, 1)
    elif RANK == 1:
        dist.recv(ones, 0)
    dist.all_gather_into_tensor(torch.empty(16 * WORLD, device=device), ones)
    dist.reduce_scatter_tensor(torch.empty(16 // WORLD, device=device), ones[: 16 // WORLD * WORLD])
    dist.broadcast(ones, 0)
    dist.barrier()
    with dist._coalescing_manager(group=dist.group.WORLD, device=device):
        for _ in range(2):
            dist.all_reduce(torch.ones(4, device=device))
    half = dist.new_group([0, 1])
    dist.all_reduce(ones, group=half)
    mixed = dist.new_group(backend="cpu:gloo,cuda:nccl")
    dist.all_reduce(ones, group=mixed)
    dist.all_reduce(torch.ones(3), group=mixed)
    torch.cuda.synchronize()
    time.sleep(1.5)  # The watchdog retires what is done once a second at most.
    told = tell(out, "idle")
    # One that cannot complete for a while: the device of the last rank is busy before it.
    if RANK == WORLD - 1:
        torch.cuda._sleep(8 * SLEEP_CYCLES_A_S)
    dist.all_reduce(ones)
    time.sleep(1)
    told |= tell(out, "pending")
    torch.cuda.synchronize()
    (out / f"cost_rank{RANK}.json").write_text(json.dumps(told, indent=1))
    dist.barrier()
    dist.destroy_process_group()


def tell(out: Path, when: str) -> dict[str, object]:
    """Write the recorder's answers, asked for by a thread that has no device; seconds and device memory of asking."""
    import torch

    told: dict[str, object] = {}

    def ask() -> None:
        dump = torch._C._distributed_c10d._dump_nccl_trace_json
        for name, arguments in (("brief", (False, False)), ("active", (True, True)), ("whole", (True, False))):
            began_s = time.monotonic()
            try:
                text = dump(*arguments)
            except (RuntimeError, TypeError) as error:
                told[f"{when} {name}"] = str(error)
                continue
            told[f"{when} {name} s"] = time.monotonic() - began_s
            (out / f"dump_{when}_{name}_rank{RANK}.json").write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )

    told[f"{when} free before"] = torch.cuda.mem_get_info()[0]
    asker = threading.Thread(target=ask)
    asker.start()
    asker.join()
    told[f"{when} free after"] = torch.cuda.mem_get_info()[0]
    return told


if __name__ == "__main__":
    main()
