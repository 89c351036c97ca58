"""A control group with a share of a CPU, of whichever version there is: a slow device, a starved rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

PERIOD_US = 100_000
VERSION_1, VERSION_2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class CpuGroup:
    """Processes that together get no more than a share of one CPU."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, share: float) -> None:
        """share: of one CPU."""
        quota_us = int(share * PERIOD_US)
        if (self.path / "cpu.cfs_quota_us").exists():
            (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.path / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def put(self, pid: int) -> None:
        """A process, with all its threads."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def is_empty(self) -> bool:
        return not (self.path / "cgroup.procs").read_text().split()


@contextmanager
def cpu_group(name: str, share: float) -> Iterator[CpuGroup]:
    """name: distinguishes those of one test. Its processes must have ended at the end. Skips where none can be made."""
    above = VERSION_1 if (VERSION_1 / "cpu.cfs_quota_us").exists() else VERSION_2
    group = CpuGroup(above / f"guardrun-test-{os.getpid()}-{name}")
    try:
        group.path.mkdir()
    except OSError as error:
        pytest.skip(f"real part cpu-quota: {error}")
    try:
        try:
            group.limit(share)
        except OSError as error:
            pytest.skip(f"real part cpu-quota: {error}")
        yield group
    finally:
        wait_until(group.is_empty, 10, f"{group.path} to be empty")
        group.path.rmdir()
