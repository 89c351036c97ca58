"""A readout before all the judges whom it concerns."""

from __future__ import annotations

from collections.abc import Iterable

from guardrun.supervisor.core.node.facts import Readout
from guardrun.supervisor.core.node.finding import Finding
from guardrun.supervisor.core.node.judge_protocol import Judge
from guardrun.supervisor.log import log


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
