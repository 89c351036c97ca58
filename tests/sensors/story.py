"""What a sensor told, turn by turn, and what a judge made of it."""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Happening, Judge, Readout, Sample, Value


class Story:
    """Feeds one judge; `told` holds all that it said, in order."""

    def __init__(self, judge: Judge, sensor: str, start_s: float = 1000.0) -> None:
        self.judge, self.sensor, self.now_s = judge, sensor, start_s
        self.told: list[Finding] = []

    def wait(self, seconds: float) -> Story:
        self.now_s += seconds
        return self

    def turn(self, subject: str, **values: Any) -> list[Finding]:
        """One readout with samples of one subject; None: unknown."""
        samples = [Sample(subject=subject, name=name, value=value) for name, value in values.items()]
        return self.give(Readout(sensor=self.sensor, at_s=self.now_s, samples=samples))

    def line(self, name: str, subject: str, text: str = "", **data: Value) -> list[Finding]:
        """One happening."""
        happening = Happening(subject=subject, name=name, at_s=self.now_s, text=text, data=data)
        return self.give(Readout(sensor=self.sensor, at_s=self.now_s, happenings=[happening], is_partial=True))

    def give(self, readout: Readout) -> list[Finding]:
        assert not self.judge.sensors or readout.sensor in self.judge.sensors
        found = self.judge.judge_readout(readout, self.now_s)
        self.told += found
        return found

    def holding(self) -> list[str]:
        """Ids of what holds, in the order in which it began."""
        held: dict[str, None] = {}
        for finding in self.told:
            if finding.is_over:
                held.pop(finding.id)
            else:
                held[finding.id] = None
        return list(held)
