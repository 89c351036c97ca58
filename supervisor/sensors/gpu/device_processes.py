"""Which processes hold a device's memory."""

from __future__ import annotations

from guardrun.supervisor.health.base.memory_holders import write_holders
from guardrun.supervisor.health.base.readings import Sample
from guardrun.supervisor.sensors.gpu.nvml_calls import UNKNOWN_64, Asker, UnreadableError

KINDS = (
    "nvmlDeviceGetComputeRunningProcesses_v3|nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3|nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3|nvmlDeviceGetGraphicsRunningProcesses_v2",
)


def read_processes(ask: Asker) -> list[Sample]:
    """`holders`: pids with the bytes each holds. In a PID namespace of its own, NVML may see none of them."""
    held: dict[int, int | None] = {}
    reasons: list[str] = []
    for functions in KINDS:
        try:
            for process in ask.call(functions):
                used = process.usedGpuMemory
                held[int(process.pid)] = None if used is None or used == UNKNOWN_64 else int(used)
        except UnreadableError as reason:
            reasons.append(str(reason))
    if len(reasons) == len(KINDS):
        return [ask.unknown("holders", reasons[0])]
    return [ask.known("holders", write_holders(held))]
