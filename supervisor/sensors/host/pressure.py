"""Pressure (PSI): for how long tasks waited for CPUs, memory and disks."""

from __future__ import annotations

from guardrun.supervisor.collect.host.node_readings import parse_psi
from guardrun.supervisor.health.base.readings import Readout, Sample
from guardrun.supervisor.sensors.base.sensor import known, unknown
from guardrun.supervisor.sensors.base.small_files import below, read_text

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
