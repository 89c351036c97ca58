"""Whole runs: fixture `edge` starts them in the test's folder and checks their records afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.runs import EdgeRuns
from tests.support.waiting import wait_until


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[EdgeRuns]:
    runs = EdgeRuns(tmp_path)
    try:
        yield runs
    finally:
        runs.close()


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for next to nothing."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40k", "small", str(folder)], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=60)


@pytest.fixture
def memory_cgroup() -> Iterator[Path]:
    """A cgroup (version 1) that may hold 900 MB; skips where there is none to be made."""
    folder = Path("/sys/fs/cgroup/memory") / f"guardrun-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(900 << 20))
    except OSError as error:
        pytest.skip(f"real part cgroup: no memory cgroup of version 1 can be made ({error})")
    try:
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text().split(), 10, "the cgroup to be empty")
        folder.rmdir()
