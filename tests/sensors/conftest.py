"""Fixtures
nvml_stub: NvmlStub, a healthy GPU at first; see tests/sensors/nvml_stub.py
old_nvml_stub: the same with what drivers of 2020 export
gpu_sensor(**options) -> GpuSensor, on nvml_stub, closed with the test
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardrun.supervisor.sensors.gpu.gpu_sensor import GpuSensor
from tests.sensors.nvml_stub import NvmlStub, build_library


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("old-nvml"), "OLD_DRIVER")


@pytest.fixture
def nvml_stub(nvml_library: Path, tmp_path: Path) -> NvmlStub:
    return NvmlStub(nvml_library, tmp_path / "nvml")


@pytest.fixture
def old_nvml_stub(old_nvml_library: Path, tmp_path: Path) -> NvmlStub:
    return NvmlStub(old_nvml_library, tmp_path / "old-nvml")


@pytest.fixture
def gpu_sensor(nvml_stub: NvmlStub, tmp_path: Path) -> Iterator[Callable[..., GpuSensor]]:
    sensors: list[GpuSensor] = []

    def make(**options: object) -> GpuSensor:
        # An empty root: the machine's own devices are none of the stub's.
        usual: dict[str, object] = {
            "root": str(tmp_path / "root"),
            "environment": nvml_stub.environment,
            "patience_s": 60.0,  # on a busy machine its process takes long to begin
        }
        sensors.append(GpuSensor(**{**usual, **options}))  # type: ignore[arg-type]
        return sensors[-1]

    yield make
    for sensor in sensors:
        sensor.close()  # A second time where the test has done so.
