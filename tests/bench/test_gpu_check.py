"""`make gpu-check` where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.devices import compare_identity
from guardrun.supervisor.health.gpu.rank_device import Gpu, Inventory

ROOT = Path(__file__).parents[2]


def test_without_a_gpu_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.check", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert ended.returncode == 2
    assert "sees no GPU here" in ended.stderr
    assert not out.exists()


FIRST, SECOND = "0b1d3a52-8c44-4b7e-9d55-2f0f6a7b1c01", "77aa3a52-8c44-4b7e-9d55-2f0f6a7b1c02"
LISTED = Inventory((Gpu(f"gpu:GPU-{FIRST}", 0, "0000:3b:00"), Gpu(f"gpu:GPU-{SECOND}", 1, "0000:5e:00")))


@pytest.mark.parametrize(
    ("uuid", "bus", "trouble"),
    [
        (FIRST, "0000:3b:00", ""),
        (f"GPU-{SECOND}", "0000:5e:00", ""),
        (FIRST, "0000:5e:00", f"gpu:GPU-{FIRST} by UUID, gpu:GPU-{SECOND} by PCI address"),
        (FIRST, "", "PCI: not told"),
        ("99aa3a52-8c44-4b7e-9d55-2f0f6a7b1c03", "0000:3b:00", "UUID: "),
    ],
)
def test_what_torch_calls_a_device_is_looked_for_in_what_nvml_lists(uuid: str, bus: str, trouble: str) -> None:
    told = compare_identity(0, uuid, bus, LISTED)
    assert told["trouble"].startswith(trouble) and bool(told["trouble"]) == bool(trouble), told
