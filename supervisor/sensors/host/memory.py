"""Memory and swap of the whole machine, what the kernel killed for want of it, and pressure (PSI)."""

from __future__ import annotations

from guardrun.supervisor.collect.host.node_readings import parse_psi, parse_sizes
from guardrun.supervisor.collect.host.oom_kills import parse_oom_kills
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import below, known, read_text, unknown


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


# Pressure -----------------------------------------------------------------------------------------------------------
# Pressure (PSI): for how long tasks waited for CPUs, memory and disks.


RESOURCES = ("cpu", "memory", "io")


class PressureSensor:
    """`cpu`, `memory`, `io`: seconds in which some task, or all at once, waited for it, since boot."""

    name = "pressure"
    period_s = 10.0
    timeout_s = 5.0

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def read(self, now_s: float) -> Readout:
        """From /proc/pressure; trouble only where none of RESOURCES could be read."""
        samples: list[Sample] = []
        for resource in RESOURCES:
            text, trouble = read_text(below(self._root, f"/proc/pressure/{resource}"))
            samples += parse_pressure(resource, text) or unknown(
                resource, ("stalled_some_s", "stalled_full_s"), trouble or "it says nothing that is known"
            )
        is_blind = all(sample.value is None for sample in samples)
        return Readout(sensor=self.name, at_s=now_s, samples=samples, trouble=samples[0].trouble if is_blind else "")

    def close(self) -> None:
        """Nothing is held."""


def parse_pressure(resource: str, text: str) -> list[Sample]:
    """/proc/pressure/RESOURCE: `total` is in microseconds (Documentation/accounting/psi.rst)."""
    lines = parse_psi(text)
    totals = {kind: shares["total"] for kind, shares in lines.items() if "total" in shares}
    return [
        sample
        for kind in ("some", "full")
        if kind in totals
        for sample in known(
            resource,
            **{
                f"stalled_{kind}_s": totals[kind] / 1e6,
                f"stalled_{kind}_ratio": round(lines[kind].get("avg10", 0.0) / 100, 4),
            },
        )
    ]
