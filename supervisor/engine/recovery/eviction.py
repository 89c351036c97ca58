"""Which node an incident leaves out of the next attempt: at most one, and never for what a script does.

What has no cause that could be found is held against a node as `engine/state/job_nodes.py` says.
"""

from __future__ import annotations

from typing import Any

from guardrun.supervisor.engine.failures.root_cause import is_lasting
from guardrun.supervisor.engine.incidents.advice import advice_for
from guardrun.supervisor.engine.model.actions import Action, Incident
from guardrun.supervisor.engine.recovery.decide import isolate
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.job_nodes import (
    MEMORY_S,
    Fleet,
    Standing,
    attributed_failures,
    is_doubt,
    kept,
    strike_for,
)
from guardrun.supervisor.engine.state.state import State

# Awaited nodes ------------------------------------------------------------------------------------------------------
# Lost nodes that may come back by themselves, frozen or cut off for a moment: isolated only once they have not.


def isolate_lost(state: State, node: str, incident_id: str, now_s: float) -> list[Action]:
    """Have a lost node isolated, at once or after [fleet] isolate_lost_s."""
    if not state.settings.isolate_lost_s:
        return [isolate(state, node, incident_id)]
    state.nodes.unsettled[node] = incident_id
    state.nodes.awaited[node] = now_s + state.settings.isolate_lost_s
    return []


def due_s(state: State) -> float | None:
    """When the first of them is to be isolated, in the engine's seconds; None: none is awaited."""
    return min(state.nodes.awaited.values(), default=None)


def on_tick(state: State, now_s: float) -> list[Action]:
    """Those that are not back in time."""
    return _isolate(state, [node for node, at_s in state.nodes.awaited.items() if now_s >= at_s])


def at_end(state: State) -> list[Action]:
    """The run, or its job, ends: nobody will see them come back."""
    return _isolate(state, list(state.nodes.awaited))


def _isolate(state: State, nodes: list[str]) -> list[Action]:
    watch = state.nodes
    for node in nodes:
        del watch.awaited[node]
    told = {node: watch.unsettled[node] for node in nodes if watch.unsettled.get(node) in state.incidents}
    return [isolate(state, node, incident_id) for node, incident_id in told.items()]


# Node install fault -------------------------------------------------------------------------------------------------
# An import that fails on one node only: what is installed there is not what the others have.
#
# It would only happen again there; on another node it would not. What tells it from a module that nobody has is that
# other nodes' ranks got further: they have entered process-group creation, or done anything at all, and none of this
# node's has. Where it fails later than that, on whichever rank comes to it first while the others wait, or before
# anybody has got so far, nothing can be told.
#
# A script may have one rank alone import something, and that rank then fails on every node: a place is swapped once,
# for a spare, and such a node is under no quarantine.


PAST_IMPORTS = 4 | 8 | 16
"""Bits of RankState.milestones: INIT_ENTERED, INIT_DONE, FIRST_PROGRESS (hooks/wire/board.py, Milestone)."""


def lacking_node(state: State, incident: Incident) -> str:
    """The one node that an import failed on, and that lacks what others have; empty where that is not so."""
    fleet, attempt = state.fleet, state.attempt
    if fleet is None or attempt is None or incident.kind != "crash":
        return ""
    if not is_lasting(incident.cause, str(incident.evidence.get("error", ""))):
        return ""
    nodes = {culprit.node for culprit in incident.culprits}
    if len(nodes) != 1:
        return ""
    past = {known.rank.node for known in attempt.ranks.values() if known.milestones & PAST_IMPORTS}
    return "" if nodes & past or not past else nodes.pop()


def node_to_swap(state: State, incident: Incident) -> str:
    """That node, where a spare can take its place, and no node before it at this place has lacked something, too."""
    node, fleet = lacking_node(state, incident), state.fleet
    if not node or fleet is None or not state.settings.act or node not in fleet.placed:
        return ""
    has_spare = any(m.standing is Standing.READY and not m.is_placed for m in fleet.members.values())
    return node if has_spare and fleet.placed.index(node) not in fleet.lacked else ""


def note_swap(fleet: Fleet, node: str) -> None:
    """The node at this place lacks something; the next one there is kept."""
    fleet.lacked = [*fleet.lacked, fleet.placed.index(node)]


def find_incident_changes(state: State, incident: Incident) -> dict[str, Any]:
    """What its incident says beyond what was known as it was told; empty where that is nothing."""
    node = lacking_node(state, incident)
    evidence = {**incident.evidence, "only_on": node}
    return {"evidence": evidence, "advice": advice_for(incident.cause, evidence)} if node else {}


def why_given_up(state: State, incident: Incident, why: str) -> str:
    """why: that it would only happen again; with where it did, if that is one node."""
    node, fleet = lacking_node(state, incident), state.fleet
    if not node or fleet is None:
        return why
    if node in fleet.placed and fleet.placed.index(node) in fleet.lacked:
        return f"{why} (on {node} as on the node that it replaced)"
    return f"{why} (only on {node}: is something missing there?)"


# Eviction -----------------------------------------------------------------------------------------------------------


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
            fleet.set_standing(member, Standing.OUT)
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
