"""Stories of jobs on several nodes: how they begin, who falls silent, and what comes of it."""

from __future__ import annotations

from typing import Any

import msgspec

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.transitions import Phase
from tests.engine.conftest import Told, kinds

CLOSED = ev.ErrorRecord(error="RuntimeError", message="[gloo] Connection closed by peer [10.0.0.2]:4242", at_s=1.0)


def starts(actions: list[ac.Action]) -> list[ac.StartAttempt]:
    """The attempts that are ordered."""
    return [action for action in actions if isinstance(action, ac.StartAttempt)]


def incident(told: Told) -> ac.Incident:
    """The run's last incident."""
    return list(told.state.incidents.values())[-1]


def stopped_and_chosen(told: Told) -> list[ac.Action]:
    """Nothing of the attempt is alive, and a checkpoint is chosen: what follows."""
    told.stopped(told.now_s + 1.0)
    if told.phase is Phase.STOPPING:
        told.read(told.now_s + 0.1)
    return told.chosen()


def drained(told: Told, **why: str) -> list[str]:
    """What is said once the scheduler has told of these; nothing else follows from it."""
    said = told.tell(ev.SchedulerStatusChanged(drained=why))
    assert kinds(said) == []
    return [action.text for action in said if isinstance(action, ac.Say)]


def led(told: Told, most: int = 2, spares: int = 1, least: int | None = None, **settings: Any) -> Told:
    """Trains since one second, led by n0."""
    chosen = msgspec.convert(settings, ev.Settings)
    plan = ev.FleetPlan(least=least or most, most=most, spares=spares)
    told.tell(
        ev.RunOpened(run_id="run", settings=chosen, node="n0", command=[], world_size=2, wall_s=0.0, fleet=plan), 0.1
    )
    for slot in range(most + spares):
        told.joined(f"n{slot}", slot)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    return told


def silent(told: Told, since_s: float, *nodes: str, apart_s: float = 0.4, is_dropped: bool = False) -> None:
    """Nothing is heard of these since then, of each a bit longer than of the one before."""
    for number, node in enumerate(nodes):
        at_s = since_s + apart_s * number
        told_s = at_s + (0.05 if is_dropped else 5.0)
        told.tell(ev.NodeSuspected(node=node, since_s=at_s, is_dropped=is_dropped), told_s)


def isolated(actions: list[ac.Action]) -> list[str]:
    """The nodes that are isolated."""
    return [action.node for action in actions if isinstance(action, ac.Isolate)]


def requeue_of(told: Told) -> ac.Requeue:
    """How the job is requeued, once no more nodes are waited for."""
    while told.phase is Phase.GATHERING:
        for action in told.tick():
            if isinstance(action, ac.Requeue):
                return action
    raise AssertionError("it was not asked for")


def running(told: Told, most: int = 2, spares: int = 1, **more: Any) -> Told:
    """Trains since one second."""
    told.fleet_opened(most, spares, **more)
    told.fleet_started(1.0)
    told.step(10, 2.0)
    return told
