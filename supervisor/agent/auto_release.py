"""Ends the node's quarantine by itself where its own sensors show that what it was for is well again.

For what a look shows (health/release_rules.py); what only a device that works shows is left to `guardctl check --full`:
nothing is loaded here, whoever's job may be running.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from guardrun.supervisor.agent.agent_context import AgentLoop, AgentState
from guardrun.supervisor.base.log import log
from guardrun.supervisor.health.base.findings import Finding, Response
from guardrun.supervisor.health.base.readings import Readout
from guardrun.supervisor.health.quarantine_rules import PREFLIGHT, Isolation
from guardrun.supervisor.health.release_rules import Part, Proof, calm_s, part_of

FRESH_S = 120.0
"""A reading that is older says nothing of now."""


class ReleaseContext(AgentState, AgentLoop, Protocol):
    """What ending a quarantine uses of the agent."""


class AutoRelease:
    """Watches the parts that the node is quarantined for."""

    def __init__(self, agent: ReleaseContext, calm_s: float) -> None:
        """calm_s: how long a part must have been well, as far as this agent itself has seen."""
        self._agent = agent
        self._calm_s = calm_s
        self._well: dict[str, float] = {}
        """By isolation: since when its part is seen to be well."""

    def look(self, now_s: float) -> None:
        """Lift what may be lifted."""
        agent = self._agent
        held = msgspec.convert(agent.ward.state.get("holding", []), list[Isolation])
        parts = [(one, part) for one in held if (part := part_of(one)) and part.proof is Proof.LOOK]
        if not parts or not agent.config.policy.act:
            self._well.clear()
            return
        readouts, findings = agent.latest.readouts.values(), agent.latest.findings.values()
        well = [(one, part) for one, part in parts if is_well(part, readouts, findings, now_s)]
        self._well = {one.id: self._well.get(one.id, now_s) for one, _ in well}
        for one, part in well:
            lasted_s = min(now_s - self._well[one.id], calm_s(one, agent.wall_s))
            if lasted_s >= self._calm_s:
                self._lift(one, f"{part.subject} has been well for {lasted_s / 60:.0f} minutes")

    def _lift(self, isolation: Isolation, reason: str) -> None:
        agent = self._agent

        def told(left: str) -> None:
            log.info("mended", summary=reason, left=left)
            agent.quarantine_changed(agent.ward.state)

        agent.ward.release(PREFLIGHT, reason, agent.wall_s, told, only=(isolation.id,))


def is_well(part: Part, readouts: Iterable[Readout], findings: Iterable[Finding], now_s: float) -> bool:
    """Say whether a part is heard of, up where that can be told, and nothing is found wrong with it.

    Nor may anything be wrong that the node would be isolated for now.
    """
    if any(finding.subject == part.subject or finding.response is Response.ISOLATE for finding in findings):
        return False
    known = {
        sample.name: sample.value
        for readout in readouts
        if not readout.is_silent and now_s - readout.at_s < FRESH_S
        for sample in readout.samples
        if sample.subject == part.subject and sample.value is not None
    }
    return bool(known) and bool(known.get("is_up", True))
