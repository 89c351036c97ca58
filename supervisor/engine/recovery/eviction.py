"""Which node an incident leaves out of the next attempt: at most one, and never for what a script does.

What has no cause that could be found is held against a node as `engine/state/failure_attribution.py` says.
"""

from __future__ import annotations

from guardrun.supervisor.engine.model.actions import Action, Incident
from guardrun.supervisor.engine.recovery.decide import isolate
from guardrun.supervisor.engine.recovery.node_install_fault import node_to_swap, note_swap
from guardrun.supervisor.engine.state.failure_attribution import (
    MEMORY_S,
    attributed_failures,
    is_doubt,
    kept,
    strike_for,
)
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.job_nodes import Fleet, Standing
from guardrun.supervisor.engine.state.state import State

OWN = frozenset({"gpu_lost", "node_lost"})
"""A device's or a node's own: it is left out at once. What sensors find has its response
(engine/detectors/node_health.py)."""
RETURNS = 2
"""A node that is lost, and back before the next attempt, takes part in it; not so often in a week, …"""
WHOLE_RETURNS = 4
"""… nor so often where it brought its ranks along: what froze it, or cut it off, need not be its own."""
UNSETTLED_S = 86400.0
"""An isolation that was cut short longer ago is not gone on with: who has looked at the node since knows better."""


def node_to_blame(fleet: Fleet, incident: Incident) -> tuple[str, str]:
    """The node that the next attempt is to do without, and why; two empty texts where there is none.

    What an incident is to its node has been booked before (`book_doubt`).
    """
    node = _only_node(fleet, incident)
    if not node or incident.cause in OWN:
        return node, incident.cause if node else ""
    strikes = fleet.members[node].strikes
    is_held = is_doubt(incident) and strikes and strikes[-1].incident == incident.id
    times = attributed_failures(strikes, len(fleet.placed)) if is_held else 0
    if not times or fleet.placed.index(node) in fleet.swapped:
        # The same ranks have failed on another node, too: it is not the node.
        return "", ""
    if not any(m.standing is Standing.READY and not m.is_placed for m in fleet.members.values()):
        return "", ""  # a doubt is worth a spare, not a smaller job
    return node, f"{incident.cause}, {times} times without a cause found"


def book_doubt(fleet: Fleet, incident: Incident, now_s: float) -> None:
    """A failure without a cause is held against its node, unless it shows that it is the script's."""
    node = _only_node(fleet, incident)
    if not node or incident.cause in OWN or not is_doubt(incident):
        return
    fleet.doubts += 1
    member = fleet.members[node]
    strikes = kept(member.strikes, now_s)
    strike = strike_for(incident, strikes, fleet.doubts)
    member.strikes = [*strikes, strike] if strike else strikes


def _only_node(fleet: Fleet, incident: Incident) -> str:
    """Where all culprits are, if that is one node that trained; else empty."""
    nodes = {culprit.node for culprit in incident.culprits}
    return nodes.pop() if len(nodes) == 1 and nodes <= set(fleet.placed) else ""


def is_of_node(state: State, incident: Incident) -> bool:
    """Whether what stopped the attempt was one of several nodes' own, which the next one does without."""
    if state.fleet is None:
        return False
    if node_to_swap(state, incident):
        return True
    return incident.cause in OWN or any(culprit.node in state.nodes.isolated for culprit in incident.culprits)


def isolate_again(state: State, now_s: float) -> list[Action]:
    """What a supervisor, or a whole job, that died may not have done. What it did, somebody may have undone since."""
    told = {node: known for node, name in state.nodes.unsettled.items() if (known := state.incidents.get(name))}
    return [
        isolate(state, node, incident.id)
        for node, incident in told.items()
        if node not in state.nodes.awaited and now_s - incident.detected_s < UNSETTLED_S
    ]


def evict(state: State, incident: Incident, now_s: float) -> list[Action]:
    """After a verdict: have the node that is to blame, and those that are under quarantine, do without."""
    fleet = state.fleet
    if fleet is None or not state.settings.act:
        return []
    actions: list[Action] = []
    book_doubt(fleet, incident, now_s)
    node, why = node_to_blame(fleet, incident)
    if node and incident.cause not in OWN:
        fleet.swapped = [*fleet.swapped, fleet.placed.index(node)]
    if lacking := node_to_swap(state, incident):
        node, why = lacking, f"{incident.cause}, there alone"
        note_swap(fleet, lacking)
    isolated = {name: told for name, told in state.nodes.isolated.items() if name in fleet.members}
    if node and node not in isolated and incident.cause in OWN and incident.cause != "node_lost":
        state.nodes.isolated[node] = isolated[node] = incident.id
        actions.append(isolate(state, node, incident.id))
    for name in sorted({node, *isolated} - {""}):
        member = fleet.members[name]
        if member.standing is Standing.OUT:
            continue
        told = isolated.get(name, incident.id)
        if name == node and incident.cause == "node_lost" and member.standing is Standing.READY:
            # It is back already, and may take part; not if that becomes a habit.
            member.returned_s = [*(at_s for at_s in member.returned_s if now_s - at_s <= MEMORY_S), now_s]
            most = WHOLE_RETURNS if member.is_whole and state.settings.isolate_lost_s else RETURNS
            is_kept = len(member.returned_s) < most
        else:
            is_kept = member.standing in (Standing.LOST, Standing.LEFT)
        if not is_kept:
            fleet.stand(member, Standing.OUT)
            member.since_s = now_s
            member.why = f"incident {told}: {why or state.incidents[told].cause}"
        is_back = member.standing is Standing.READY and not member.incident
        is_spared = is_back and incident.cause == "node_lost" and bool(state.settings.isolate_lost_s)
        if (name == node and not is_back) or (told == incident.id and not is_spared):
            actions.append(change(state, incident.id, action="isolate_node"))
    if not node and incident.cause == "node_lost":
        # Several, of which none is more to blame than another: who is back by now takes part, however often.
        lost = [fleet.members[name] for name in {one.node for one in incident.culprits} if name in fleet.members]
        if len(lost) > 1 and any(m.incident == incident.id or m.standing is Standing.LEFT for m in lost):
            actions.append(change(state, incident.id, action="isolate_node"))
    return actions
