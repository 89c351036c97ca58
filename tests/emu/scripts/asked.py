"""A rank of one whose device stands still, and what asking its recorder costs: JSON on stdout.

asked.py FOLDER CALLS: it has CALLS collectives pending. A line on stdin has it hold the GIL for so many seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
import torch.distributed as dist

from guardrun.supervisor.collect.collectives.worker_server import request
from tests.emu import device as emu

ROUNDS = 40
FOLDER, CALLS = sys.argv[1], int(sys.argv[2])
SOCKET = os.path.join(FOLDER, "server")


def measure(target: str) -> dict[str, float]:
    """The least number of queries, and the median time, of asking. torch's watchdog queries, too: every 100 ms."""
    queries, seconds = [], []
    for _ in range(ROUNDS):
        before, began = emu.count_queries(), time.perf_counter()
        size = len(request(SOCKET, "POST", target, time.monotonic() + 10))
        seconds.append(time.perf_counter() - began)
        queries.append(emu.count_queries() - before)
    return {"queries": min(queries), "ms": round(sorted(seconds)[ROUNDS // 2] * 1e3, 2), "bytes": size}


def main() -> None:
    emu.use()
    dist.init_process_group("nccl", init_method=f"file://{FOLDER}/store", rank=0, world_size=1)
    tensor = torch.ones(4, device="emu")
    dist.all_reduce(tensor)
    tensor.cpu()
    while not json.loads(emu.dump())["entries"][0]["retired"]:  # by the watchdog; it is asked for until then
        time.sleep(0.01)
    # What torch calls for `_set_pg_timeout`, which knows no device but CUDA.
    dist.group.WORLD._get_backend(tensor.device).set_timeout(timedelta(seconds=2100))
    emu.hold()
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(CALLS)]
    server = torch._C._distributed_c10d._WorkerServer(SOCKET)  # type: ignore[attr-defined]
    handler = "/handler/dump_nccl_trace_json"
    told: dict[str, Any] = {"numbers": measure(f"{handler}?includecollectives=false"), "entries": measure(handler)}
    told["timeouts_s"] = [entry["timeout_ms"] // 1000 for entry in json.loads(emu.dump())["entries"]]
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    system: Callable[[bytes], int] = ctypes.PyDLL(None).system
    system(b"echo holds; read line")  # one call, from before the word until it is told to go on, with the GIL
    print("held", flush=True)
    sys.stdin.readline()
    emu.release()
    for work in works:
        work.wait()
    dist.destroy_process_group()
    server.shutdown()


if __name__ == "__main__":
    main()
