"""Builds of this tree's archives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILD_WHEEL = (sys.executable, "-m", "hatchling", "build", "-t", "wheel")


def run(*command: str | Path, cwd: Path) -> str:
    """Run to the end, away from this tree's own settings; raises AssertionError with the output where it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GUARDRUN_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
