"""A job whose nodes are tried together before they train, and what is found."""

from __future__ import annotations

from guardrun.supervisor.engine.model import actions as ac
from guardrun.supervisor.engine.model import events as ev
from tests.engine.conftest import Told

DEAF = "does not reach any of 2 others (n0, n2; n1 to n0: timed out)"


def opened(told: Told, most: int = 2, spares: int = 1, level: str = "quick", **more: object) -> list[ac.Action]:
    """All nodes are there: what the last to join led to."""
    plan = ev.FleetPlan(least=int(str(more.pop("least", most))), most=most, spares=spares)
    told.opened(2, plan, check_nodes=level, last_call_s=30.0, **more)
    actions: list[ac.Action] = []
    for slot in reversed(range(most + spares)):
        actions += told.joined(f"n{slot}", slot)
    return actions


def checked(told: Told, check: int = 1, faulty: dict[str, str] | None = None, *lines: str) -> list[ac.Action]:
    """What follows from the answer. faulty: node to what is wrong with it; lines: what is only said."""
    evidence = {node: {"check": "reach", "failed_with": ["n0", "n2"]} for node in faulty or {}}
    event = ev.NodesChecked(check=check, faulty=faulty or {}, evidence=evidence, said=list(lines))
    return told.tell(event, told.now_s + 0.2)
