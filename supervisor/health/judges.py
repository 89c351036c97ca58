"""All judges of the node, in one explicit list. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.health_judge import Judge
from guardrun.supervisor.health.gpu.gpu_judges import gpu_judges
from guardrun.supervisor.health.host.clock import ClockJudge
from guardrun.supervisor.health.host.cpu_starvation import CpuStarvedJudge
from guardrun.supervisor.health.host.disks import DiskJudge
from guardrun.supervisor.health.host.machine_checks import MachineJudge
from guardrun.supervisor.health.host.memory import MemoryJudge
from guardrun.supervisor.health.host.network import NetworkJudge
from guardrun.supervisor.health.host.silent_sensors import SilentJudge
from guardrun.supervisor.health.host.thermal_cpu import ThermalCpuJudge


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
        SilentJudge(),
    ]


def all_judges() -> list[Judge]:
    """All judges there are, new."""
    return [*gpu_judges(), *host_judges()]
