"""What became of a node's isolation: it is done, it could not be done, or a person has released the node since."""

from __future__ import annotations

from guardrun.supervisor.engine.membership.membership import try_start
from guardrun.supervisor.engine.membership.rejoin import still_out
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, WithdrawIsolation
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.incidents import change
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import State


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
    fleet.stand(member, Standing.READY)
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
