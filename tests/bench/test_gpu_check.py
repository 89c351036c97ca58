"""`make gpu-check` where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / "benchmarks" / "gpu" / "check.py"


def test_without_a_gpu_it_says_so_and_makes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = subprocess.run(
        [sys.executable, str(CHECK), "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert ended.returncode == 2
    assert "sees no GPU here" in ended.stderr
    assert not out.exists()
