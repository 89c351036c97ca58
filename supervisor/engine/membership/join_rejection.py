"""A node was refused before it could join (quarantine, pre-flight): is it still waited for?"""

from __future__ import annotations

from guardrun.supervisor.engine.membership.membership import try_start
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.run_summary import finish
from guardrun.supervisor.engine.state.job_nodes import Member, Standing, may_be_enough, missing_words
from guardrun.supervisor.engine.state.state import State

MAX_WHY_CHARS = 500


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
    fleet.stand(member, Standing.LEFT)
    member.since_s, member.why, member.refused = now_s, why, event.exit_code if event.is_final else 0
    if state.phase is not Phase.GATHERING:
        return actions
    if state.attempt is None and member.refused and not may_be_enough(fleet):
        reason = f"too few nodes: {missing_words(fleet)}"
        return [*actions, *finish(state, "interrupted", member.refused, reason, now_s)]
    return actions + try_start(state, now_s)
