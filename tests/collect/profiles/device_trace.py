"""Traces as torch's profiler writes them on a GPU with NCCL: fields, names and order of a real one."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from guardrun.hooks.wire.examinations import STEP_MARK

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84942979072,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }
  ],
  "cupti_version": 24, "cuda_runtime_version": 12080, "cuda_driver_version": 13000,
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_count": 1},
  "trace_id": "4EC6BC581A96418DA0FB5072651A8098",
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
BASE_US = 4859292338689.298
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
    "__5x_cublas"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
COPY = "Memcpy HtoD (Pinned -> Device)"


class DeviceTrace:
    """Written kernel by kernel; times are microseconds from its beginning."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._numbers = count(1000)

    def mark(self, at: float, step: int) -> None:
        """A step has ended, on the host."""
        self._add("user_annotation", f"{STEP_MARK}{step}", at, 0.9, {"External id": next(self._numbers)})

    def launch(
        self, name: str, begins: float, lasts: float, *, at: float, under: str = "aten::mm", stream: int = 7
    ) -> None:
        """What runs on the device from `begins` on, launched by the host at `at`."""
        external, correlation = next(self._numbers), next(self._numbers)
        is_collective = under.startswith("nccl:")
        kind, operator = ("user_annotation", under) if is_collective else ("cpu_op", under)
        self._add(kind, operator, at, 20.0, {"External id": external, "Record function id": 0, "Ev Idx": external})
        call = {"External id": external, "cbid": 211, "correlation": correlation}
        self._add("cuda_runtime", "cudaLaunchKernel", at + 2, 5.0, call)
        more: dict[str, Any] = {"External id": external, "device": 0, "context": 1, "stream": stream}
        more["correlation"] = correlation
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        if category == "kernel":
            more |= {
                "queued": 0, "registers per thread": 168, "shared memory": 213248, "blocks per SM": 1.9393939,
                "warps per SM": 23.272728, "grid": [2, 128, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19,
            }  # fmt: skip
        else:
            more |= {"bytes": 1609728, "memory bandwidth (GB/s)": 50.45694762248065}
        if is_collective:
            more |= {
                "Collective name": "allreduce", "In msg nelems": 6553600, "Out msg nelems": 6553600, "Group size": 2,
                "dtype": "BFloat16", "Process Group Name": "0", "Process Group Description": "default_pg",
            }  # fmt: skip
            self._add("gpu_user_annotation", under, begins, lasts, {"External id": external}, pid=0, tid=stream)
        self._add(category, name, begins, lasts, more, pid=0, tid=stream)

    def text(self) -> str:
        """The file."""
        events = ",\n  ".join(json.dumps(event, indent=4) for event in self.events)
        return f'{HEAD}  {events}\n  ],\n  "traceName": "/run/user/1000/x.json"\n}}'

    def _add(
        self,
        category: str,
        name: str,
        at: float,
        lasts: float,
        more: dict[str, Any],
        *,
        pid: int = 13720,
        tid: int = 13720,
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": BASE_US + at, "dur": lasts}
        self.events.append({**event, "args": more})


def two_steps(gemm_us: float = 600) -> DeviceTrace:
    """Two steps after one that does not count.

    Each takes 1,000 µs: 600 multiplying, 110 adding, 50 copying, 300 communicating, 200 of them hidden.
    """
    trace = DeviceTrace()
    for step in range(3):
        host, device = 400.0 * step, 1000.0 * step
        trace.launch(COPY, device, 50, at=host + 10, under="aten::copy_", stream=20)
        trace.launch(GEMM, device + 50, gemm_us, at=host + 30)
        trace.launch(ALL_REDUCE, device + 450, 300, at=host + 60, under="nccl:all_reduce", stream=23)
        trace.launch(ADD, device + 850, 100, at=host + 90, under="aten::add_")
        trace.launch(ADD, device + 990, 10, at=host + 120, under="aten::add_")
        trace.mark(host + 400, step)
    return trace
