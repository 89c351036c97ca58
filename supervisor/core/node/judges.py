"""All judges of the node, in one explicit list. Pure."""

from __future__ import annotations

from guardrun.supervisor.core.node.clock import ClockJudge
from guardrun.supervisor.core.node.cpu_starved import CpuStarvedJudge
from guardrun.supervisor.core.node.disk import DiskJudge
from guardrun.supervisor.core.node.gpu import gpu_judges
from guardrun.supervisor.core.node.judge_protocol import Judge
from guardrun.supervisor.core.node.machine import MachineJudge
from guardrun.supervisor.core.node.memory import MemoryJudge
from guardrun.supervisor.core.node.network import NetworkJudge
from guardrun.supervisor.core.node.silent import SilentJudge
from guardrun.supervisor.core.node.thermal_cpu import ThermalCpuJudge


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
