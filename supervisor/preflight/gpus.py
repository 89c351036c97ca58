"""The check of the GPUs: their sensor's first readout, judged for health and for strangers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from guardrun.supervisor.core.node.facts import Readout
from guardrun.supervisor.preflight.remark import Check, Remark, Subject, ok

NAME = "gpus"
PATIENCE_S = 1.6
"""For NVML, of the two seconds that all quick checks have."""
DRIVER = ("/dev/nvidiactl", "/proc/driver/nvidia/version")
LIBRARY = "libnvidia-ml.so.1"


def may_have_gpus(environ: Mapping[str, str]) -> bool:
    """Say whether it is worth starting NVML's process: a driver is loaded, or its library was put somewhere."""
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    return any(map(os.path.exists, [*DRIVER, *(os.path.join(folder, LIBRARY) for folder in folders)]))


def read_gpus(environ: Mapping[str, str], patience_s: float = PATIENCE_S) -> Readout:
    """The sensor's first readout, within patience_s."""
    from guardrun.supervisor.node.sensors.gpu import GpuSensor

    sensor = GpuSensor(environment=environ, patience_s=patience_s)
    try:
        return sensor.read(time.monotonic())
    finally:
        sensor.close()


def run(subject: Subject) -> list[Remark]:
    if not may_have_gpus(subject.environ):
        return [ok(NAME, "No NVIDIA driver is loaded: a node without GPUs, or without their driver.")]
    # Sensor and judges: milliseconds that a node without GPUs is spared at each start.
    from guardrun.supervisor.preflight import gpuhealth, strangers

    readout = read_gpus(subject.environ)
    seen = strangers.visible(gpuhealth.gpus_of(readout), subject.environ.get("CUDA_VISIBLE_DEVICES"))
    return [*gpuhealth.judge(readout), *strangers.judge(seen)]


CHECK = Check(NAME, run)
