"""What a part of the node agent uses of it: the node as it is known now, and the loop that the part works for.

A part takes the narrowest of these, and names beside it what else it uses; none knows the agent's class, which is made
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from guardrun.supervisor.agent.jobs import PATIENCE_S
from guardrun.supervisor.health.base.findings import Finding
from guardrun.supervisor.health.base.readings import Happening, Readout, Sample
from guardrun.supervisor.health.quarantine_rules import CALM_S

if TYPE_CHECKING:
    from guardrun.supervisor.agent.jobs import Jobs
    from guardrun.supervisor.agent.quarantine_keeper import QuarantineKeeper
    from guardrun.supervisor.config import Config


class Options(NamedTuple):
    """What an agent is started with."""

    state_dir: Path
    socket: Path
    patience_s: float = PATIENCE_S
    """From a launcher's end to looking for what it left."""
    calm_s: float = CALM_S
    """From a part's last trouble to the end of the quarantine that it was the cause of."""


class AgentState(Protocol):
    """What the agent knows of its node; read in its loop."""

    @property
    def options(self) -> Options:
        """What it was started with."""

    @property
    def config(self) -> Config:
        """Another one once it has been read anew."""

    @property
    def now_s(self) -> float:
        """CLOCK_MONOTONIC."""

    @property
    def wall_s(self) -> float:
        """Seconds since 1970; may jump."""

    @property
    def latest(self) -> Latest:
        """The newest readouts, and what is wrong now."""

    @property
    def jobs(self) -> Jobs:
        """Those that run here, and what dead ones have left."""

    @property
    def quarantine_keeper(self) -> QuarantineKeeper:
        """The node's quarantine; another one once the configuration has been read anew."""

    @property
    def counters(self) -> dict[str, int]:
        """Of readouts, findings and ended processes."""


class AgentLoop(Protocol):
    """What a part has the agent do."""

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the loop make a call; for other threads."""

    def note(  # noqa: PLR0917  # an entry's own
        self, what: str, subject: str, name: str, text: str, data: dict[str, Any] | None = None, uid: int = 0
    ) -> None:
        """Into the history, as of now. uid: whose doing it is."""

    def quarantine_changed(self, state: dict[str, Any], uid: int = 0) -> None:
        """The node is quarantined, or is not any more. uid: of who asked for it."""


# Latest readings ----------------------------------------------------------------------------------------------------
# What is known of the node now, and what of it has changed since somebody was told.


IDENTITY = frozenset({"index", "model", "bus"})
MAX_HAPPENINGS = 1000
"""Of a second, of one sensor; a kernel log that overflows tells no more by the thousandth line."""


class Latest:
    """Readouts and findings as they are now."""

    def __init__(self) -> None:
        self.readouts: dict[str, Readout] = {}
        """By sensor, without its happenings, which are over once they are told."""
        self.findings: dict[str, Finding] = {}
        """By id: those that hold."""
        self._changed: dict[str, Readout] = {}
        self._happened: dict[str, list[Happening]] = {}
        self._changed_findings: dict[str, Finding] = {}

    def update(self, readout: Readout) -> None:
        """A sensor's turn. One that tells only happenings, or only some samples, leaves the others as they were."""
        before = self.readouts.get(readout.sensor)
        now = msgspec.structs.replace(readout, happenings=[])
        if before is not None and now.is_partial:
            now = msgspec.structs.replace(now, samples=_merged(before.samples, now.samples))
        elif before is not None and not now.samples and not now.trouble and not now.is_silent:
            now = msgspec.structs.replace(now, samples=before.samples)
        self.readouts[readout.sensor] = now
        if readout.happenings:
            waiting = self._happened.setdefault(readout.sensor, [])
            waiting += readout.happenings[: MAX_HAPPENINGS - len(waiting)]
        if before is None or readout.happenings or _content(now) != _content(before):
            self._changed[readout.sensor] = now

    def find(self, finding: Finding) -> None:
        """A finding that begins, changes or is over."""
        if finding.is_over:
            self.findings.pop(finding.id, None)
        else:
            self.findings[finding.id] = finding
        self._changed_findings[finding.id] = finding

    @property
    def has_news(self) -> bool:
        """Whether `take_news` would answer anything."""
        return bool(self._changed or self._changed_findings)

    def take_news(self) -> tuple[list[Readout], list[Finding]]:
        """What has changed since the last call."""
        readouts = [
            msgspec.structs.replace(readout, happenings=self._happened.get(sensor, []))
            for sensor, readout in self._changed.items()
        ]
        findings = list(self._changed_findings.values())
        self._changed, self._happened, self._changed_findings = {}, {}, {}
        return readouts, findings

    def whole(self) -> tuple[list[Readout], list[Finding]]:
        """All that is known."""
        return list(self.readouts.values()), list(self.findings.values())


def _merged(before: list[Sample], now: list[Sample]) -> list[Sample]:
    """What is known: now's, and before's that it does not tell anew. Of a device that is lost, only who it is stays."""
    lost = {sample.subject for sample in now if sample.name == "is_lost" and sample.value is True}
    known = {
        (sample.subject, sample.name): sample
        for sample in before
        if sample.subject not in lost or sample.name in IDENTITY
    }
    known.update({(sample.subject, sample.name): sample for sample in now})
    return list(known.values())


def _content(readout: Readout) -> tuple[object, ...]:
    return (readout.samples, readout.trouble, readout.is_silent)
