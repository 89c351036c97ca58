"""Fixtures
subject(**changes) -> Subject of this folder and this environment
small_tmpfs: a file system of 8 MiB
nvml_stub: NvmlStub, see tests/sensors/nvml_stub.py
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guardrun.supervisor.preflight.base.remark import Subject
from tests.sensors.nvml_stub import NvmlStub, build_library

NODE = "node-a"
STEERING = ("NCCL_", "GLOO_", "TP_SOCKET", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE", "GUARDRUN_", "TMPDIR")


@pytest.fixture
def subject(tmp_path: Path) -> Callable[..., Subject]:
    def make(environ: dict[str, str] | None = None, **changes: Any) -> Subject:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(STEERING)}
        return Subject(node=NODE, cwd=str(tmp_path), environ={**kept, **(environ or {})}, **changes)

    return make


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", str(folder)], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml_stub(nvml_library: Path, tmp_path: Path) -> NvmlStub:
    return NvmlStub(nvml_library, tmp_path / "nvml")
