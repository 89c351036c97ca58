"""All sensors that there are, in one explicit list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor
from guardrun.supervisor.sensors.host.cgroup import CgroupSensor
from guardrun.supervisor.sensors.host.clock import ClockSensor
from guardrun.supervisor.sensors.host.cpu import CpuSensor
from guardrun.supervisor.sensors.host.disks import DisksSensor, MountsSensor
from guardrun.supervisor.sensors.host.kernel_log import KernelLogSensor
from guardrun.supervisor.sensors.host.memory import MemorySensor, PressureSensor
from guardrun.supervisor.sensors.host.processes import ProcessesSensor
from guardrun.supervisor.sensors.network.infiniband import InfinibandSensor
from guardrun.supervisor.sensors.network.interfaces import NetworkSensor


def host_sensors(root: str = "/", pids: Callable[[], Iterable[int]] | None = None) -> list[Sensor]:
    """The sensors of all but devices that compute.

    root: where to look instead of `/`; what does not come from files of /proc and /sys is the machine's own.
    pids: whose control groups are read; None: this process's own.
    """
    return [
        KernelLogSensor(),
        CpuSensor(root),
        PressureSensor(root),
        CgroupSensor(root, pids),
        MemorySensor(root),
        ProcessesSensor(root),
        DisksSensor(root),
        MountsSensor(),
        NetworkSensor(root),
        InfinibandSensor(root),
        ClockSensor(),
    ]


def default_sensors(root: str = "/", pids: Callable[[], Iterable[int]] | None = None) -> list[Sensor]:
    """All sensors for this node; root and pids as for host_sensors.

    The GPUs' is always there: that a machine has none, or no driver, is for it to say.
    """
    return [GpuSensor(root=root), *host_sensors(root, pids)]
