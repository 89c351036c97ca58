"""All judges of the node, in one explicit list. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Judge
from guardrun.supervisor.health.gpu.gpu_judges import gpu_judges
from guardrun.supervisor.health.host.cpus import CpuStarvedJudge, ThermalCpuJudge
from guardrun.supervisor.health.host.disks import DiskJudge
from guardrun.supervisor.health.host.machine import ClockJudge, MachineJudge, UnresponsiveSensorJudge
from guardrun.supervisor.health.host.memory import MemoryJudge
from guardrun.supervisor.health.host.network import NetworkJudge


def host_judges() -> list[Judge]:
    """All judges of all but GPUs, new: they know nothing yet."""
    return [
        CpuStarvedJudge(),
        ThermalCpuJudge(),
        MemoryJudge(),
        DiskJudge(),
        NetworkJudge(),
        MachineJudge(),
        ClockJudge(),
        UnresponsiveSensorJudge(),
    ]


def all_judges() -> list[Judge]:
    """All judges there are, new."""
    return [*gpu_judges(), *host_judges()]
