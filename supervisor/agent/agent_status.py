"""How the agent itself is doing: told to guardctl, to Prometheus, and to systemd's watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from guardrun import __version__
from guardrun.supervisor.agent.agent_context import AgentState
from guardrun.supervisor.agent.metrics import AgentFigures, Outlet

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
    def ingest(self) -> Ingest:
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
        "dropped_readouts": agent.ingest.mailbox.dropped,
        "counters": agent.counters,
        "quarantine": agent.quarantine_keeper.state,
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
        happenings=agent.ingest.happenings,
        is_quarantined=any(
            not one.get("is_for_owner_alone") for one in agent.quarantine_keeper.state.get("holding", [])
        ),
        jobs=sum(job.ended_s is None for job in jobs),
        leftovers=sum(len(job.left) for job in jobs),
        ended_leftovers=agent.counters["swept"],
        clients=len(agent.clients),
        has_history_trouble=bool(agent.historian.trouble),
    )


# Watchdog -----------------------------------------------------------------------------------------------------------
# Feeding systemd's watchdog, on a thread that a long turn of the loop does not starve, and that does not lie for it.
#
# It feeds while the loop waits, and while the turn that it is in began less than a bound ago. A turn that never ends is
# fed no longer than that, and systemd ends the agent with SIGABRT, as it does where the loop says that all is not well.


FEEDS_A_PERIOD = 3
BOUND = 0.5
"""Of systemd's own period: how old a turn may be that is still fed. systemd acts one period after the last feed."""


class Watchdog:
    """The loop says when a turn begins and ends; everything else is the thread's."""

    def __init__(self, period_s: float, feed: Callable[[], None], is_well: Callable[[float], bool]) -> None:
        """period_s: systemd's; 0: nobody watches. is_well: asked before each feed, on the thread, with the time."""
        self._period_s = period_s
        self._feed = feed
        self._is_well = is_well
        self._began_s: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guardrun-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread; nothing where systemd does not watch."""
        if self._period_s > 0:
            self._thread.start()

    def turn_begins(self) -> None:
        """From the loop, when it stops waiting: until `turn_ended` the turn's age counts."""
        self._began_s = time.monotonic()

    def turn_ended(self) -> None:
        """From the loop, before it waits again: waiting is no fault, however long."""
        self._began_s = None

    def close(self) -> None:
        """End the thread, and wait for it. systemd is fed no more."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            now_s, began_s = time.monotonic(), self._began_s
            is_moving = began_s is None or now_s - began_s < BOUND * self._period_s
            if is_moving and self._is_well(now_s):
                self._feed()
            if self._end.wait(self._period_s / FEEDS_A_PERIOD):
                return
