"""The real node agent, with a sensor that reads its readings from a file and a judge that knows three words.

    python program.py READINGS [guardrund --node's arguments]

READINGS holds lines `SUBJECT NAME VALUE`; a line `! SUBJECT NAME TEXT` is a happening, told once; beside it lies
READINGS.clock, where there is one: by how many seconds somebody has set the clock.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from guardrun.supervisor.agent.command import Equipment, run_node
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Happening, Readout, Sample

JUDGED = {
    "is_hot": ("is_hot/{}", "thermal", Response.NOTE),
    "is_broken": ("is_broken/{}", "gpu_xid", Response.ISOLATE),
    "is_down": ("network/{}/down", "network", Response.ISOLATE),
}
"""What a sample's name stands for: the finding's id, cause and response."""


class FileSensor:
    """Tells what the file holds."""

    name = "file"
    period_s = 0.1
    timeout_s = 10.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: set[str] = set()

    def read(self, now_s: float) -> Readout:
        samples, happenings = [], []
        for line in self._path.read_text().splitlines():
            if not line.startswith("!"):
                subject, name, value = line.split(maxsplit=2)
                samples.append(Sample(subject=subject, name=name, value=_parse(value)))
            elif line not in self._told:
                self._told.add(line)
                _, subject, name, text = line.split(maxsplit=3)
                happenings.append(Happening(subject=subject, name=name, at_s=now_s, text=text))
        return Readout(sensor=self.name, at_s=now_s, samples=samples, happenings=happenings)

    def close(self) -> None:
        pass


class WordJudge:
    """A finding for as long as a sample of one of JUDGED's names is not 0."""

    sensors = frozenset({"file"})

    def __init__(self) -> None:
        self._holding: dict[str, Finding] = {}

    def judge_readout(self, readout: Readout, now_s: float) -> list[Finding]:
        if any(sample.name == "raise" for sample in readout.samples):
            raise RuntimeError("a judge's bug")
        wrong = {s.subject: s for s in readout.samples if s.name in JUDGED and s.value}
        changed = []
        for subject, sample in wrong.items():
            if subject not in self._holding:
                name, cause, response = JUDGED[sample.name]
                self._holding[subject] = Finding(
                    id=name.format(subject),
                    cause=cause,
                    subject=subject,
                    since_s=now_s,
                    told_s=now_s,
                    summary=f"{subject} {sample.name}.",
                    response=response,
                )
                changed.append(self._holding[subject])
        for subject in set(self._holding) - set(wrong):
            before = self._holding.pop(subject)
            changed.append(
                Finding(
                    id=before.id,
                    cause=before.cause,
                    subject=subject,
                    since_s=before.since_s,
                    told_s=now_s,
                    summary=f"{subject} is well again.",
                    is_over=True,
                )
            )
        return changed


def _parse(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def main(readings: str, *arguments: str) -> int:
    def equip() -> Equipment:
        return Equipment(lambda pids: [FileSensor(Path(readings))], [WordJudge()])

    def wall() -> float:
        clock = Path(f"{readings}.clock")
        by_s = float(clock.read_text()) if clock.exists() else 0.0
        return time.time() + by_s

    return run_node(arguments, equip, wall)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
