"""The GPU sensor on a real driver, where a machine has one: against nvidia-smi's word."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.gpu.gpu_inventory import GpuBook
from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real("gpu")

QUERY = ("index", "uuid", "name", "memory.total", "temperature.gpu", "clocks.max.sm")
ALWAYS = {
    "temperature_c",
    "clock_reasons",
    "sm_clock_hz",
    "sm_clock_max_hz",
    "power_w",
    "memory_used_bytes",
    "pcie_generation",
    "pcie_width",
    "holders",
}
"""What every data centre GPU of today tells."""


def told_by(sensor: GpuSensor) -> Readout | None:
    readout = sensor.read(time.monotonic())
    return readout if readout.samples else None


def test_it_tells_what_nvidia_smi_tells() -> None:
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi to hold it against")
    sensor = GpuSensor(patience_s=60.0)
    try:
        readout = wait_until(lambda: told_by(sensor), 120.0, "a first turn")
    finally:
        sensor.close()
    done = subprocess.run(
        [program, f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    book = GpuBook()
    book.update(readout)
    values = {(sample.subject, sample.name): sample.value for sample in readout.samples}
    for line in done.stdout.splitlines():
        index, uuid, name, memory_mib, temperature, max_clock = (text.strip() for text in line.split(","))
        gpu = f"gpu:{uuid}"
        assert (book.index(gpu), book.model(gpu)) == (int(index), name)
        unknown = {name for name in ALWAYS if values[gpu, name] is None}
        assert not unknown
        assert values[gpu, "memory_total_bytes"] == int(memory_mib) << 20
        assert values[gpu, "sm_clock_max_hz"] == int(max_clock) * 1e6
        told = values[gpu, "temperature_c"]
        assert isinstance(told, (int, float))
        assert abs(told - int(temperature)) <= 10
    gpus = {subject for subject, _ in values if book.index(subject) >= 0}
    assert len(gpus) == len(done.stdout.splitlines())
