"""A node that was lost is there again: what was to keep it out of what comes is withdrawn, or said where it is done."""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action, WithdrawIsolation
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.job_nodes import Member
from guardrun.supervisor.engine.state.state import State


def take_back(state: State, member: Member) -> list[Action]:
    """What follows for its isolation from a node's being heard. A person's word is needed for what has been done."""
    member.is_cut = False
    watch, node = state.nodes, member.node
    incident = state.incidents.get(watch.unsettled.get(node, ""))
    if incident is not None and incident.cause == "node_lost":
        del watch.unsettled[node]
        member.incident = ""
        if watch.awaited.pop(node, None) is not None:
            is_last = incident.id not in watch.unsettled.values() and incident.action == "isolate_node"
            return [change(state, incident.id, action="restart")] if is_last else []
        return [WithdrawIsolation(node=node, incident=incident.id)]
    told, member.incident = member.incident, ""
    how = watch.kept_out.pop(node, "")
    return [still_out(node, how, told)] if how else []


def still_out(node: str, how: str, incident_id: str) -> Action:
    """What was done about a node that was lost stands, though it is back. how: drained, under quarantine."""
    told = f" for incident {incident_id}" if incident_id else ""
    return announce(f"{node} is back, and still {how}{told}: `guardctl node release {node}` ends that", level="warn")
