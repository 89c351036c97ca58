"""A guardrun is told to end, in a job of several nodes: the whole job's end, or a spare's alone."""

from __future__ import annotations

from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.run_summary import signal_name, stop_words
from guardrun.supervisor.engine.state.job_nodes import Standing
from guardrun.supervisor.engine.state.state import State


def may_leave(state: State, node: str) -> bool:
    """Whether a node can go and the job go on without it: a spare, or one that is left out, and not the head.

    While the first nodes are waited for, those beyond the wanted number are spares.
    """
    fleet = state.fleet
    if fleet is None or node == state.node or state.phase in (Phase.NEW, Phase.ENDED):
        return False
    member = fleet.members.get(node)
    if member is None or member.is_placed:
        return False
    return bool(fleet.placed) or member.standing is Standing.OUT or member.order >= fleet.plan.most


def leave(state: State, event: ev.StopRequested, now_s: float) -> list[Action]:
    """It has left: nothing else follows. Who was left out stays so."""
    assert state.fleet is not None
    member = state.fleet.members[event.node]
    name = signal_name(event.signum)
    what = "it was left out already" if member.standing is Standing.OUT else "it was a spare"
    if member.standing is not Standing.OUT:
        state.fleet.set_standing(member, Standing.LEFT)
        member.is_missed, member.since_s, member.why = False, now_s, f"{name} to its guardrun"
    return [announce(f"{event.node} leaves: {name} to its guardrun; {what}", level="info")]


def ending(state: State) -> list[Action]:
    """Whose signal ends the job: of several nodes, a terminal shows whichever has it."""
    if state.fleet is None or not state.signalled:
        return []
    return [announce(f"{stop_words(state)}: ending the job on all nodes", level="warn")]
