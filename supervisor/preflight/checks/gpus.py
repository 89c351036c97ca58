"""The check of the GPUs: their sensor's first readout, judged for health and for strangers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.preflight.base.remark import Check, Remark, Subject, ok
from guardrun.supervisor.sensors.gpu.device_presence import has_driver

NAME = "gpus"
PATIENCE_S = 1.6
"""For NVML, of the two seconds that all quick checks have."""


def read_gpus(environ: Mapping[str, str], patience_s: float) -> Readout:
    """The sensor's first readout, within patience_s."""
    from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor

    sensor = GpuSensor(environment=environ, patience_s=patience_s)
    try:
        return sensor.read(time.monotonic())
    finally:
        sensor.close()


def run(subject: Subject) -> list[Remark]:
    """Reads all GPUs' health; processes of others only on those that CUDA_VISIBLE_DEVICES names."""
    if not has_driver(Path("/"), subject.environ):
        return [ok(NAME, "No NVIDIA driver is loaded: a node without GPUs, or without their driver.")]
    # Sensor and judges: milliseconds that a node without GPUs is spared at each start.
    from guardrun.supervisor.preflight.checks import gpu_health

    readout = read_gpus(subject.environ, PATIENCE_S)
    seen = gpu_health.visible(gpu_health.gpus_of(readout), subject.environ.get("CUDA_VISIBLE_DEVICES"))
    return [*gpu_health.judge_health(readout), *gpu_health.judge_memory(seen, gpu_health.reader_of(readout))]


CHECK = Check(NAME, run)
