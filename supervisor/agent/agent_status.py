"""How the agent itself is doing, for guardctl and for /metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from guardrun import __version__
from guardrun.supervisor.agent.metrics.metrics import AgentFigures

if TYPE_CHECKING:
    from guardrun.supervisor.agent.agent import Agent


def describe(agent: Agent) -> dict[str, Any]:
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


def read_figures(agent: Agent) -> AgentFigures:
    """The agent's state now, for /metrics; in the agent's loop."""
    now_s = agent.now_s
    jobs = agent.jobs.all()
    return AgentFigures(
        node=agent.node,
        now_s=now_s,
        started_at_s=agent.wall_s - (now_s - agent.began_s),
        readouts=agent.latest.readouts,
        findings=agent.latest.findings.values(),
        happenings=agent.intake.happenings,
        is_quarantined=any(not one.get("is_for_owner_alone") for one in agent.ward.state.get("holding", [])),
        running_jobs=sum(job.ended_s is None for job in jobs),
        leftover_processes=sum(len(job.left) for job in jobs),
        ended_processes=agent.counters["swept"],
        clients=len(agent.clients),
        is_history_unwritten=bool(agent.historian.trouble),
    )
