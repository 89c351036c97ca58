"""A person has released a node that the run had left out: it may take part again."""

from __future__ import annotations

from guardrun.supervisor.engine.membership.membership import try_start
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action, WithdrawIsolation
from guardrun.supervisor.engine.recovery.decide import announce
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
