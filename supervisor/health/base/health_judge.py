"""What every judge of node parts is. Pure."""

from __future__ import annotations

from typing import Protocol

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Readout


class Judge(Protocol):
    """Turns the readouts of some sensors into findings. Pure: what it remembers is its own."""

    @property
    def sensors(self) -> frozenset[str]:
        """Names of the sensors whose readouts it takes."""

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """What begins, changes or is over, now that this is known. now_s: CLOCK_MONOTONIC."""
