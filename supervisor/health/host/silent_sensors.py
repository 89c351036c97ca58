"""A sensor whose call does not return: what it reads is stuck in the kernel or in a driver. Pure.

NVML's silence is lost_devices.py's.
"""

from __future__ import annotations

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.open_findings import Standing
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.base.responses import finding_id, host_finding

CAUSE = "sensor"
NOT_OURS = "gpu"


class SilentJudge:
    """`sensor/sensor:NAME`."""

    sensors: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._standing = Standing()

    def take(self, readout: Readout, now_s: float) -> list[Finding]:
        """One finding a sensor for as long as its call does not return; NVML's silence is left to LostJudge."""
        if readout.sensor == NOT_OURS:
            return []
        subject = f"sensor:{readout.sensor}"
        if not readout.is_silent:
            return self._standing.end(finding_id(CAUSE, subject), now_s, f"Sensor {readout.sensor} answers again")
        return self._standing.hold(
            host_finding(
                CAUSE,
                subject,
                "",
                since_s=readout.at_s,
                told_s=now_s,
                summary=f"Sensor {readout.sensor} does not answer: {readout.trouble}",
                evidence={"trouble": readout.trouble},
                advice="What it reads is stuck in the kernel or in a driver; `dmesg` may say why.",
            )
        )
