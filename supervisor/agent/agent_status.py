"""How the agent itself is doing, for guardctl and for Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from guardrun import __version__
from guardrun.supervisor.agent.agent_context import AgentState
from guardrun.supervisor.agent.metrics.metrics import AgentFigures, Outlet

if TYPE_CHECKING:
    from guardrun.supervisor.agent.clients import Clients
    from guardrun.supervisor.agent.history.history_writer import HistoryWriter
    from guardrun.supervisor.agent.ingest import Ingest


class StatusContext(AgentState, Protocol):
    """What its status tells of the agent."""

    @property
    def node(self) -> str:
        """Its node's name."""

    @property
    def pid(self) -> int:
        """The agent's process."""

    @property
    def began_s(self) -> float:
        """CLOCK_MONOTONIC, as it began."""

    @property
    def clients(self) -> Clients:
        """Who is connected."""

    @property
    def intake(self) -> Ingest:
        """Counts what has happened, and what was dropped."""

    @property
    def historian(self) -> HistoryWriter:
        """Says whether the history is written."""

    @property
    def outlet(self) -> Outlet:
        """Says where metrics are served."""

    @property
    def trouble(self) -> str:
        """Why the state folder can't be used; empty where it can."""


def describe(agent: StatusContext) -> dict[str, Any]:
    """The data of the answer to `status`."""
    now_s = agent.now_s
    return {
        "node": agent.node,
        "version": __version__,
        "pid": agent.pid,
        "uptime_s": round(now_s - agent.began_s, 1),
        "cpu_s": round(time.process_time(), 3),
        "sensors": {
            name: {
                "age_s": round(now_s - readout.at_s, 1),
                "took_s": round(readout.took_s, 4),
                "trouble": readout.trouble,
                "is_silent": readout.is_silent,
            }
            for name, readout in agent.latest.readouts.items()
        },
        "findings": len(agent.latest.findings),
        "jobs": len(agent.jobs.living()),
        "clients": len(agent.clients),
        "refused_clients": agent.clients.refused,
        "throttled": agent.clients.pauses,
        "malformed": agent.clients.malformed,
        "dropped_readouts": agent.intake.mailbox.dropped,
        "counters": agent.counters,
        "quarantine": agent.ward.state,
        "history": agent.historian.status(),
        "metrics": agent.outlet.address,
        "state_dir": str(agent.options.state_dir),
        "trouble": agent.jobs.trouble or agent.trouble,
    }


def figures(agent: StatusContext) -> AgentFigures:
    """What is served to Prometheus."""
    jobs = agent.jobs.all()
    return AgentFigures(
        node=agent.node,
        now_s=agent.now_s,
        wall_s=agent.wall_s,
        began_s=agent.began_s,
        readouts=agent.latest.readouts,
        findings=agent.latest.findings.values(),
        happenings=agent.intake.happenings,
        is_quarantined=any(not one.get("is_for_owner_alone") for one in agent.ward.state.get("holding", [])),
        jobs=sum(job.ended_s is None for job in jobs),
        leftovers=sum(len(job.left) for job in jobs),
        ended_leftovers=agent.counters["swept"],
        clients=len(agent.clients),
        has_history_trouble=bool(agent.historian.trouble),
    )
