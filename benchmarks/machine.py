"""The machine that the figures hold for. Nothing that names it: no host, no user, no path."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import msgspec

BUSY = 0.25
"""Load for each core above which others disturb: the benchmark itself has not begun yet."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to compare."""

    cpu: str
    cores: int
    memory_gb: int
    kernel: str
    python: str
    torch: str
    guardrun: str
    date: str
    """UTC"""
    load_1m: float
    """Load average when the run began."""

    @property
    def is_busy(self) -> bool:
        return self.load_1m > BUSY * self.cores

    def __str__(self) -> str:
        return (
            f"{self.cores} cores of {self.cpu}, {self.memory_gb} GB, Linux {self.kernel}, Python {self.python}, "
            f"torch {self.torch}, guardrun {self.guardrun}"
        )


def parse_cpu(cpuinfo: str) -> str:
    """The processor's name in /proc/cpuinfo; the architecture where it has none (aarch64)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return platform.machine()


def describe() -> Machine:
    """Look at this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=parse_cpu(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory / 2**30),
        kernel=platform.release().partition("-")[0],
        python=platform.python_version(),
        torch=version("torch"),
        guardrun=version("guardrun"),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        load_1m=round(os.getloadavg()[0], 2),
    )
