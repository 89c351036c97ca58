"""Memory and swap of the whole machine, and what the kernel killed for want of it."""

from __future__ import annotations

from guardrun.supervisor.collect.host.node_readings import parse_sizes
from guardrun.supervisor.collect.host.oom_kills import parse_oom_kills
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import known, unknown
from guardrun.supervisor.sensors.base.small_files import below, read_text


class MemorySensor:
    """`memory`: bytes, and OOM kills since boot."""

    name = "memory"
    period_s = 10.0
    timeout_s = 5.0

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def read(self, now_s: float) -> Readout:
        """From /proc/meminfo and /proc/vmstat."""
        meminfo, trouble = read_text(below(self._root, "/proc/meminfo"))
        vmstat, no_vmstat = read_text(below(self._root, "/proc/vmstat"))
        samples = parse_meminfo(meminfo)
        if not samples:
            samples = unknown("memory", ("available_bytes", "total_bytes"), trouble or "/proc/meminfo says nothing")
        kills = parse_oom_kills(vmstat)
        if kills >= 0:
            samples += known("memory", oom_kills=kills)
        else:
            samples += unknown("memory", ("oom_kills",), no_vmstat or "/proc/vmstat does not count them")
        return Readout(sensor=self.name, at_s=now_s, samples=samples, trouble=trouble)

    def close(self) -> None:
        """Nothing is held."""


def parse_meminfo(text: str) -> list[Sample]:
    """/proc/meminfo; without MemAvailable (kernels before 3.14) nothing is told."""
    sizes = parse_sizes(text)
    if "MemTotal" not in sizes or "MemAvailable" not in sizes:
        return []
    swap = sizes.get("SwapTotal", 0)
    return known(
        "memory",
        available_bytes=sizes["MemAvailable"],
        total_bytes=sizes["MemTotal"],
        swap_used_bytes=max(0, swap - sizes.get("SwapFree", swap)),
        swap_total_bytes=swap,
    )
