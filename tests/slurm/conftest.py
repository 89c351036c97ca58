"""Fixtures
agent, open_folder: as in tests/agent
fake_slurm(**programs) -> Slurm: Slurm's programs replaced by small shell scripts, by name
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from guardrun.slurm.client.commands import Slurm
from tests.agent.conftest import agent, open_folder
from tests.support.slurmlab import SlurmLab

__all__ = ["agent", "fake_slurm", "open_folder", "slurm"]


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Callable[..., Slurm]:
    """Programs that answer as a broken, slow or refusing Slurm does."""

    def make(timeout_s: float = 5.0, **programs: str) -> Slurm:
        for name, text in programs.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        return Slurm({"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout_s)

    return make


@pytest.fixture
def slurm(slurm_lab: SlurmLab) -> Slurm:
    """The lab's Slurm, asked as guardrun does."""
    return Slurm(slurm_lab.environment())
