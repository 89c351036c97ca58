"""Nodes of which nothing is heard: how long that may last, when they are lost, and when contact alone is.

A silent node is lost after a time that depends on what else is seen: whether its connection was closed, how long
silences of this run's have lasted, whether the job advances. Those whose time comes within seconds are lost together,
as one cause may be behind it. Where the job goes on with the node, contact alone is lost: said, and counted.
"""

from __future__ import annotations

from collections.abc import Collection

from guardrun.supervisor.engine.membership import formation, node_checks
from guardrun.supervisor.engine.membership.node_failure import TOGETHER_S, cut_off, lose, trains
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.run_view import silence_began_s
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import eviction
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.state.job_nodes import Fleet, Member, Standing
from guardrun.supervisor.engine.state.state import State

DROPPED_S = 5.0
"""A follower that was killed is back within a second or two; nothing at all, where its whole node was."""
STILL = 1.5
"""Times the run's own gap between two advances: what has not advanced for longer stands still."""
STILL_MAX_S = 60.0
"""Gaps may be long for a while (evaluations): a node that is gone is not waited for as long as that."""
SILENCES = 1.5
"""So many times the longest silence that has ended by itself…"""
MOST_SILENCES = 2.0
"""… but no more than so many times [fleet] lost_s."""


def on_node_suspected(state: State, event: ev.NodeSuspected, now_s: float) -> list[Action]:
    """Note since when; nothing else follows until the node is heard again or counts as lost."""
    fleet = state.fleet
    member = fleet.members.get(event.node) if fleet is not None else None
    if fleet is None or member is None or member.standing not in (Standing.READY, Standing.SILENT):
        return []
    fleet.set_standing(member, Standing.SILENT)
    # What was seen before the head was stopped may be told after it.
    since_s = max(event.since_s, fleet.ran_s)
    member.since_s, member.is_dropped, member.dropped_s = since_s, event.is_dropped, now_s
    return []


def skip(fleet: Fleet, gap_s: float, now_s: float) -> None:
    """The head did not run for gap_s: whoever was silent then is silent from now on, spares and waits included."""
    fleet.ran_s = now_s
    fleet.since_s = min(fleet.since_s + gap_s, now_s)
    for node in fleet.quiet:
        fleet.members[node].since_s = fleet.members[node].dropped_s = now_s


def forgive_silence(fleet: Fleet, now_s: float) -> None:
    """A supervisor that was started anew has listened to nobody yet: silence counts from now on."""
    fleet.ran_s = now_s
    for node in fleet.quiet:
        member = fleet.members[node]
        member.since_s, member.is_dropped = now_s, False


def forgive_others(fleet: Fleet, head: str, member: Member, now_s: float) -> None:
    """A node is heard again, of which the head had heard as little as of any other: those may need a moment more.

    Connections are found again one after the other, by timers of their own. To be called before it stands otherwise.
    """
    if member.standing not in (Standing.SILENT, Standing.LOST) or not fleet.quiet:
        return
    for node in cut_off(fleet, head, member.since_s):
        other = fleet.members[node]
        if other.standing is Standing.SILENT and other is not member and not (other.is_dropped or other.is_missed):
            other.since_s = now_s


# Lost --------------------------------------------------------------------------------------------------


def due_s(state: State) -> float | None:
    """When something is to be decided about nodes."""
    fleet = state.fleet
    if fleet is None or state.phase in (Phase.NEW, Phase.ENDED):
        return None
    times = [_lost_s(state, fleet.members[node]) for node in fleet.quiet]
    if (lost_s := lost_together_s(times)) is not None:
        times = [lost_s]
    times += [state.last_s for node in fleet.quiet if _is_only_missed(state, fleet.members[node])]
    if (check_s := node_checks.due_s(state)) is not None:
        times.append(check_s)
    if (isolate_s := eviction.due_s(state)) is not None:
        times.append(isolate_s)
    if state.phase is Phase.GATHERING:
        times.append(formation.due_s(state, fleet))
    return min(times, default=None)


def silence_limit_s(lost_s: float, *, is_dropped: bool) -> float:
    """How long a node may be silent before it is lost, at the least. lost_s: [fleet] lost_s."""
    return min(DROPPED_S, lost_s) if is_dropped else lost_s


def _lost_s(state: State, member: Member) -> float:
    """When a silent node is lost, if nothing changes: neither it is heard nor does the job advance."""
    attempt = state.attempt
    # Of a node that is not tied the others' progress says nothing, and without contact it has ended its ranks.
    tied = attempt if attempt is not None and trains(state, member) and member.node in attempt.tied else None
    if member.is_dropped and tied is not None and silence_began_s(tied) > member.dropped_s + DROPPED_S:
        # It has trained on: its supervisor alone was dead. Where its ranks fall, one has to be started that says so.
        return silence_began_s(tied) + _patience_s(state)
    patience_s = _patience_s(state)
    if member.is_dropped:
        patience_s = silence_limit_s(state.settings.lost_s, is_dropped=True)
    at_s = (member.dropped_s if member.is_dropped else member.since_s) + patience_s
    if tied is None or state.phase is not Phase.RUNNING:
        return at_s
    # Ranks that advance together all live; only once they have stood still, it may be this node.
    still_s = min(patience_s, DROPPED_S)
    if not member.is_dropped:
        still_s = max(still_s, min(STILL * state.gaps.typical_s, STILL_MAX_S))
    return max(at_s, silence_began_s(tied) + still_s)


def lost_together_s(times: Collection[float]) -> float | None:
    """When silent nodes are given up: those whose time comes soon after the first one's, all together."""
    first_s = min(times, default=None)
    return None if first_s is None else max(at_s for at_s in times if at_s <= first_s + TOGETHER_S)


def _is_only_missed(state: State, member: Member) -> bool:
    """Contact alone is lost, as what the job does by now shows, and that is still to be said."""
    attempt = state.attempt
    if attempt is None or state.phase is not Phase.RUNNING or not member.is_placed:
        return False
    if member.node not in attempt.tied:
        return False
    return _is_training_on(member, attempt.progress_s, max(_patience_s(state), STILL * state.gaps.typical_s))


def _patience_s(state: State) -> float:
    """As configured; longer where silences of this run's have ended by themselves after nearly as long."""
    lost_s, longest_s = state.settings.lost_s, state.fleet.longest_s if state.fleet else 0.0
    return max(silence_limit_s(lost_s, is_dropped=False), min(SILENCES * longest_s, MOST_SILENCES * lost_s))


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    fleet = state.fleet
    if fleet is None or state.phase in (Phase.NEW, Phase.ENDED):
        return []
    actions = eviction.on_tick(state, now_s) + _give_up_together(state, fleet, now_s)
    for member in [fleet.members[node] for node in fleet.quiet]:
        if _is_only_missed(state, member):
            actions += _miss(member, now_s)
    if (check_s := node_checks.due_s(state)) is not None and now_s >= check_s:
        actions += formation.give_up_check(state, f"no answer for {now_s - state.ordered_s:.0f} s", now_s)
    if state.phase is Phase.GATHERING:
        actions += formation.on_tick(state, fleet, now_s)
    return actions


def _give_up_together(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    times = {node: _lost_s(state, fleet.members[node]) for node in fleet.quiet}
    lost_s = lost_together_s(times.values())
    if lost_s is None or now_s < lost_s:
        return []
    lost = [fleet.members[node] for node, at_s in times.items() if now_s >= at_s]
    for member in lost:
        _give_up_node(fleet, member, now_s)
    return lose(state, lost, now_s)


def _give_up_node(fleet: Fleet, member: Member, now_s: float) -> None:
    closed = "its connection was closed, and " if member.is_dropped else ""
    member.why = f"{closed}nothing has been heard of it for {now_s - member.since_s:.0f} s"
    fleet.set_standing(member, Standing.LOST)
    member.is_missed = False


# Contact alone -----------------------------------------------------------------------------------------


def _is_training_on(member: Member, progress_s: float, patience_s: float) -> bool:
    """Whether a silent node, which has part in what the others do, is seen by their progress to train on.

    progress_s: when the job last advanced. patience_s: for how long it might without the node; for that long, too,
    nothing is said.
    """
    return not member.is_missed and progress_s > member.since_s + patience_s


def _miss(member: Member, now_s: float) -> list[Action]:
    """Say it, once."""
    member.is_missed = True
    member.contact_lost += 1
    member.why = "contact is lost; its training goes on"
    lost_s = now_s - member.since_s
    return [announce(f"contact with {member.node} lost for {lost_s:.0f} s: its training goes on", level="warn")]


def regain(member: Member, now_s: float) -> list[Action]:
    """It is heard again; to be called before it stands otherwise."""
    if not member.is_missed:
        return []
    member.is_missed, member.why = False, ""
    return [announce(f"contact with {member.node} is back, after {now_s - member.since_s:.0f} s", level="info")]
