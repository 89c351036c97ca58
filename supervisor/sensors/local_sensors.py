"""The supervisor's own senses, where no node agent runs: devices, CPUs and its control group, by the user's rights."""

from __future__ import annotations

import time

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.judges import all_judges
from guardrun.supervisor.sensors.base.readouts import Mailbox, judge_all
from guardrun.supervisor.sensors.base.sensor import Sensor
from guardrun.supervisor.sensors.base.sensor_runner import Runner
from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor
from guardrun.supervisor.sensors.host.cgroup import CgroupSensor
from guardrun.supervisor.sensors.host.cpu import CpuSensor
from guardrun.supervisor.sensors.host.memory import PressureSensor


class LocalSensors:
    """Sensors in threads of their own, and the judges of what they tell."""

    def __init__(self, pids: list[int]) -> None:
        """pids: whose control group counts."""
        self._mailbox = Mailbox()
        self._judges = all_judges()
        sensors: list[Sensor] = [GpuSensor(), CpuSensor(), CgroupSensor(pids=lambda: pids), PressureSensor()]
        self._runner = Runner(sensors, self._mailbox.put)
        self._runner.start()

    def judge_new_readouts(self) -> tuple[list[Readout], list[Finding]]:
        """What has been read since the last call, and what follows from it."""
        readouts = self._mailbox.pop_all()
        now_s = time.monotonic()
        return readouts, [finding for readout in readouts for finding in judge_all(self._judges, readout, now_s)]

    def close(self) -> None:
        """Never waits for a sensor that is stuck."""
        self._runner.close()
        self._mailbox.close()
