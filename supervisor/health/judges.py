"""All judges of the node, in explicit lists: those of GPUs, and those of everything else. Pure."""

from __future__ import annotations

from guardrun.supervisor.health.base.readings import Judge
from guardrun.supervisor.health.gpu.device_links import LinkJudge
from guardrun.supervisor.health.gpu.device_memory import EccJudge, RemapJudge
from guardrun.supervisor.health.gpu.gpu_inventory import LostJudge
from guardrun.supervisor.health.gpu.thermal import ThrottleJudge
from guardrun.supervisor.health.gpu.xid_judge import XidJudge
from guardrun.supervisor.health.host.cpus import CpuStarvedJudge, ThermalCpuJudge
from guardrun.supervisor.health.host.disks import DiskJudge
from guardrun.supervisor.health.host.machine import ClockJudge, MachineJudge, UnresponsiveSensorJudge
from guardrun.supervisor.health.host.memory import MemoryJudge
from guardrun.supervisor.health.host.network import NetworkJudge


def gpu_judges() -> list[Judge]:
    """All judges of GPUs, new: they know nothing yet."""
    return [ThrottleJudge(), EccJudge(), RemapJudge(), XidJudge(), LinkJudge(), LostJudge()]


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
