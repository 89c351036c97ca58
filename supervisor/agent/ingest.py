"""What comes in from the sensors: kept, judged, and what follows from what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from guardrun.supervisor.agent.agent_context import AgentLoop, AgentState
from guardrun.supervisor.agent.history.downsampling import Downsampler, Point
from guardrun.supervisor.agent.history.history import Entry
from guardrun.supervisor.agent.history.history_writer import FindingStartTimes
from guardrun.supervisor.agent.quarantine_keeper import isolation_of
from guardrun.supervisor.base.background_work import BackgroundWriter
from guardrun.supervisor.base.log import log
from guardrun.supervisor.health.base.findings import Finding, Response, respond
from guardrun.supervisor.health.base.readings import Judge, Readout
from guardrun.supervisor.sensors.base.readouts import Mailbox, judge_all

MAX_NAMES = 256


class IngestContext(AgentState, AgentLoop, Protocol):
    """What taking in readouts uses of the agent."""

    @property
    def writer(self) -> BackgroundWriter:
        """Writes what the agent keeps."""

    def write(self, entry: Entry) -> None:
        """Into the history."""


class Ingest:
    """Belongs to the agent's loop; sensors' threads only touch `mailbox.put`."""

    def __init__(self, agent: IngestContext, judges: Sequence[Judge]) -> None:
        self._agent = agent
        self._judges = list(judges)
        self._thinner = Downsampler()
        self.start_times = FindingStartTimes(agent.options.state_dir, agent.writer)
        self.mailbox = Mailbox()
        self.heard_s = agent.now_s
        """When there was a readout last."""
        self.happenings: dict[str, int] = {}
        """How often each has happened, by its name."""

    def take_all(self, mask: int, now_s: float) -> None:
        """A handler of the agent's loop: there are readouts."""
        self.heard_s = now_s
        for readout in self.mailbox.pop_all():
            self._agent.counters["readouts"] += 1
            self._take_readout(readout, now_s)

    def take_points(self, is_end: bool = False) -> list[Point]:
        """What of the samples is worth keeping, once it is time."""
        return self._thinner.take_points(self._agent.wall_s, is_end)

    def _take_readout(self, readout: Readout, now_s: float) -> None:
        before = self._agent.latest.readouts.get(readout.sensor)
        self._agent.latest.update(readout)
        if (before.trouble if before else "") != readout.trouble:
            log.info(
                "sensor_trouble" if readout.trouble else "sensor_again", sensor=readout.sensor, why=readout.trouble
            )
        self._thinner.add(readout, self._agent.wall_s)
        for happening in readout.happenings:
            if happening.name in self.happenings or len(self.happenings) < MAX_NAMES:
                self.happenings[happening.name] = self.happenings.get(happening.name, 0) + 1
            wall_s = self._agent.wall_s - max(0.0, now_s - happening.at_s)
            self._agent.write(
                Entry(wall_s, "happening", happening.subject, happening.name, happening.text, happening.data)
            )
        for finding in judge_all(self._judges, readout, now_s):
            self.find(respond(finding, self._agent.config.policy.responses))

    def find(self, finding: Finding) -> None:
        """Something begins to be wrong, changes, or is over."""
        self._agent.counters["findings"] += 1
        self._agent.latest.find(finding)
        since_wall_s = self.start_times.note_finding(finding, self._agent.now_s, self._agent.wall_s)
        say = log.info if finding.is_over or finding.response is Response.NOTE else log.warning
        say(
            "finding_over" if finding.is_over else "finding",
            summary=finding.summary,
            cause=finding.cause,
            subject=finding.subject,
            finding=finding.id,
            response=finding.response.value,
        )
        data = {"id": finding.id, "is_over": finding.is_over, "response": finding.response.value, **finding.evidence}
        self._agent.note("finding", finding.subject, finding.cause, finding.summary, data)
        if finding.response is Response.ISOLATE and not finding.is_over:
            self._isolate(finding, since_wall_s)

    def _isolate(self, finding: Finding, since_wall_s: float) -> None:
        if not self._agent.config.policy.act:
            log.info("not_isolated", why="policy.act is false", finding=finding.id)
            return
        isolation = isolation_of(finding, since_wall_s, self._agent.wall_s)

        def on_written(why: str) -> None:
            if why:
                log.info("not_isolated", why=why, finding=finding.id)
            self._agent.quarantine_changed(self._agent.quarantine_keeper.state)

        self._agent.quarantine_keeper.isolate(isolation, self._agent.wall_s, on_written)
