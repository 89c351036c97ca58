"""A readout before all the judges whom it concerns."""

from __future__ import annotations

from collections.abc import Iterable

from guardrun.supervisor.base.log import log
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.health_judge import Judge
from guardrun.supervisor.health.base.readings import Readout


def judge_all(judges: Iterable[Judge], readout: Readout, now_s: float) -> list[Finding]:
    """What they make of it, together. A bug in one judge costs neither the others' word nor whoever asks."""
    findings: list[Finding] = []
    for judge in judges:
        if judge.sensors and readout.sensor not in judge.sensors:
            continue
        try:
            findings += judge.take(readout, now_s)
        except Exception:
            log.exception("judge_raised", judge=type(judge).__name__, sensor=readout.sensor)
    return findings
