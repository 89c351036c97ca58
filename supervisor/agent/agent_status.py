"""How the agent itself is doing, for guardctl."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from guardrun import __version__

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
