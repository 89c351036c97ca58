"""Nodes that join, leave, are heard again, or are let in again by a person: how each stands with the job from then on.

A node that was lost and is there again is the next spare: what was to keep it out of what comes is withdrawn, or, where
it is done, said. One that refuses to start says so before it has joined. How an isolation went is noted here, too.
"""

from __future__ import annotations

from guardrun.supervisor.engine.membership.formation import missing_words, next_membership, odd_size, try_start
from guardrun.supervisor.engine.membership.node_failure import lose
from guardrun.supervisor.engine.membership.node_silence import forgive_others, regain
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, WithdrawIsolation
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.run_summary import finish
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import State

MAX_WHY_CHARS = 500


def on_node_joined(state: State, event: ev.NodeJoined, now_s: float) -> list[Action]:
    """A node is there, for the first time or again."""
    fleet = state.fleet
    if fleet is None:
        return []
    member = fleet.members.get(event.node)
    if member is None:
        order = fleet.order_of(event.slot)
        member = fleet.members[event.node] = Member(
            node=event.node,
            order=order,
            ranks=event.ranks,
            since_s=now_s,
            switches=event.switches,
            role=event.role,
            addresses=event.addresses,
        )
        return odd_size(fleet, fleet.placed, member) + take_back(state, member) + try_start(state, now_s)
    has_changed, member.ranks = member.ranks != event.ranks, event.ranks
    member.is_dropped, member.switches, member.refused = False, event.switches, 0
    member.role, member.addresses, member.is_whole = event.role, event.addresses, event.attempt >= 0
    if member.standing is Standing.OUT:
        return []
    was = member.standing
    actions = _hear_again(state, fleet, member, now_s)
    actions += odd_size(fleet, fleet.placed, member) if has_changed else []
    member.why = ""
    if was in (Standing.LOST, Standing.LEFT):
        actions.append(announce(f"{event.node} is back: it waits for the next attempt", level="info"))
    return actions + take_back(state, member) + try_start(state, now_s)


def on_node_contact_restored(state: State, event: ev.NodeContactRestored, now_s: float) -> list[Action]:
    """A silent node is back in time: the silence is kept as this network's longest, and looks go on."""
    fleet, member = state.fleet, _member(state, event.node)
    if fleet is None or member is None or member.standing is not Standing.SILENT:
        return []
    if not member.is_dropped:
        fleet.longest_s = max(fleet.longest_s, now_s - member.since_s)
    actions = _hear_again(state, fleet, member, now_s) + take_back(state, member)
    member.is_dropped = False
    return actions + try_start(state, now_s)


def _hear_again(state: State, fleet: Fleet, member: Member, now_s: float) -> list[Action]:
    forgive_others(fleet, state.node, member, now_s)
    actions = regain(member, now_s)
    fleet.set_standing(member, Standing.READY)
    member.since_s = now_s
    return actions


def on_node_left(state: State, event: ev.NodeLeft, now_s: float) -> list[Action]:
    """A guardrun ended by itself, its ranks with it."""
    fleet, member = state.fleet, _member(state, event.node)
    if fleet is None or member is None or member.standing in (Standing.LEFT, Standing.OUT):
        return []
    fleet.set_standing(member, Standing.OUT if event.is_unfit else Standing.LEFT)
    member.is_missed = False
    member.since_s, member.why = now_s, event.why or "its guardrun has ended"
    return lose(state, [member], now_s)


def _member(state: State, node: str) -> Member | None:
    return state.fleet.members.get(node) if state.fleet is not None else None


def on_node_absent(state: State, event: ev.NodeAbsent, now_s: float) -> list[Action]:
    """Say it; start without it, or end, where that is all that was waited for."""
    fleet = state.fleet
    if fleet is None:
        return []
    member = fleet.members.get(event.node)
    if member is None:
        order = fleet.order_of(event.slot)
        member = fleet.members[event.node] = Member(node=event.node, order=order, ranks=0, standing=Standing.LEFT)
    elif member.standing in (Standing.READY, Standing.SILENT):
        return []  # another guardrun's: this one has joined
    why = event.why[:MAX_WHY_CHARS].rstrip(".")
    actions: list[Action] = [announce(f"{event.node} takes no part: {why}", level="bad")]
    if member.standing is Standing.OUT:
        return actions  # nobody waits for it
    fleet.set_standing(member, Standing.LEFT)
    member.since_s, member.why, member.refused = now_s, why, event.exit_code if event.is_final else 0
    if state.phase is not Phase.GATHERING:
        return actions
    found = next_membership(state, fleet, now_s)
    if state.attempt is None and member.refused and not found.may_suffice:
        reason = f"too few nodes: {missing_words(fleet, found)}"
        return [*actions, *finish(state, "interrupted", member.refused, reason, now_s)]
    return actions + try_start(state, now_s)


# Out, and back ----------------------------------------------------------------------------------------


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


def on_node_released(state: State, event: ev.NodeReleased, now_s: float) -> list[Action]:
    """It is the next spare, and nothing is held against it. A release from before it was left out is none."""
    fleet = state.fleet
    member = fleet.members.get(event.node) if fleet is not None else None
    if fleet is None or member is None or member.standing is not Standing.OUT or event.at_s <= member.since_s:
        return []
    watch = state.nodes
    watch.isolated.pop(member.node, None)
    watch.kept_out.pop(member.node, None)
    watch.awaited.pop(member.node, None)
    undone = watch.unsettled.pop(member.node, "")
    withdrawn: list[Action] = [WithdrawIsolation(node=member.node, incident=undone)] if undone else []
    fleet.checked = [node for node in fleet.checked if node != member.node]
    fleet.set_standing(member, Standing.READY)
    member.since_s, member.why, member.incident = now_s, "", ""
    member.strikes, member.returned_s, member.is_unfit = [], [], False
    reason = f" ({event.reason})" if event.reason else ""
    said = f"{member.node} was released by {event.who}{reason}: it waits for the next attempt"
    return [announce(said, level="info"), *withdrawn, *try_start(state, now_s)]


def on_not_isolated(state: State, event: ev.NotIsolated, now_s: float) -> list[Action]:
    """The node is as it was."""
    if state.nodes.isolated.get(event.node) != event.incident:
        return []
    del state.nodes.isolated[event.node]
    state.nodes.unsettled.pop(event.node, None)
    said = announce(f"{event.node} could not be put under quarantine: {event.why}", level="warn")
    return [change(state, event.incident, action="none"), said]


def on_isolation_settled(state: State, event: ev.IsolationSettled, now_s: float) -> list[Action]:
    """Nothing of it is to be done again."""
    if state.nodes.unsettled.get(event.node) == event.incident:
        del state.nodes.unsettled[event.node]
    known = state.incidents.get(event.incident)
    if not event.how or state.fleet is None or known is None or known.cause != "node_lost":
        return []
    member = state.fleet.members.get(event.node)
    if member is not None and member.standing in (Standing.READY, Standing.SILENT):
        return [still_out(event.node, event.how, event.incident)]  # it came back in the same moment
    state.nodes.kept_out[event.node] = event.how
    return []
