"""Nodes that somebody has drained: what runs there goes on, and the next attempt takes others where it can.

An administrator who drains a node wants it empty, or doubts it. Neither is worth a restart; but one that comes anyway
may as well go to a spare. guardrun's own drains are not told here: what it drains it has left out already.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import State

THERE = (Standing.READY, Standing.SILENT)


def note_drained(state: State, drained: dict[str, str] | None) -> list[Action]:
    """Take in which nodes are drained, and say what has changed. drained: None where it is not known."""
    fleet = state.fleet
    if fleet is None or drained is None:
        return []
    actions: list[Action] = []
    for name, member in fleet.members.items():
        why = drained.get(name, "")
        if why == member.drained:
            continue
        member.drained = why
        if member.standing in THERE:
            actions.append(announce(_words(fleet, member), level="info"))
    return actions


def _words(fleet: Fleet, member: Member) -> str:
    if not member.drained:
        return f"{member.node} is drained no more"
    said = f"{member.node} is drained ({member.drained})"
    if not member.is_placed:
        return f"{said}: it takes a place only where no other node can"
    waiting = [m for m in fleet.members.values() if m.standing is Standing.READY and not m.is_placed]
    has_other = any(not m.drained and m.ranks == member.ranks for m in waiting)
    return f"{said}: training there goes on{', until the next restart: a spare is there' if has_other else ''}"
