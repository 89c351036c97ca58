"""Nodes that join, fall silent, are lost and come back; and the next attempt's, chosen among those that are there."""

from __future__ import annotations

from guardrun.supervisor.engine.membership import (
    join_wait,
    node_checks,
    partition,
    unreachable,
    world_size_change,
)
from guardrun.supervisor.engine.membership.node_failure import lose, trains
from guardrun.supervisor.engine.membership.rejoin import take_back
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.run_view import silence_began_s
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import awaited_nodes, requeue
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.launcher_orders import start
from guardrun.supervisor.engine.recovery.run_summary import finish
from guardrun.supervisor.engine.state.job_nodes import (
    Fleet,
    Member,
    Standing,
    first_ranks,
    missing_words,
    place,
)
from guardrun.supervisor.engine.state.state import State, enter

DROPPED_S = 5.0
"""A deputy that was killed is back within a second or two; nothing at all, where its whole node was."""
STILL = 1.5
"""Times the run's own gap between two advances: what has not advanced for longer stands still."""
STILL_MAX_S = 60.0
"""Gaps may be long for a while (evaluations): a node that is gone is not waited for as long as that."""
SILENCES = 1.5
"""So many times the longest silence that has ended by itself…"""
MOST_SILENCES = 2.0
"""… but no more than so many times [fleet] lost_s."""


# Joining and leaving -----------------------------------------------------------------------------------


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
        )
        return (
            world_size_change.say_odd(fleet, fleet.placed, member) + take_back(state, member) + try_start(state, now_s)
        )
    has_changed, member.ranks = member.ranks != event.ranks, event.ranks
    member.is_dropped, member.switches, member.refused = False, event.switches, 0
    member.role, member.is_whole = event.role, event.attempt >= 0
    if member.standing is Standing.OUT:
        return []
    was = member.standing
    actions = _hear_again(state, fleet, member, now_s)
    actions += world_size_change.say_odd(fleet, fleet.placed, member) if has_changed else []
    member.why = ""
    if was in (Standing.LOST, Standing.LEFT):
        actions.append(announce(f"{event.node} is back: it waits for the next attempt", level="info"))
    return actions + take_back(state, member) + try_start(state, now_s)


def on_node_suspected(state: State, event: ev.NodeSuspected, now_s: float) -> list[Action]:
    """Note since when; nothing else follows until the node is heard again or counts as lost."""
    fleet, member = state.fleet, _member(state, event.node)
    if fleet is None or member is None or member.standing not in (Standing.READY, Standing.SILENT):
        return []
    fleet.stand(member, Standing.SILENT)
    member.since_s, member.is_dropped, member.dropped_s = event.since_s, event.is_dropped, now_s
    return []


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
    partition.forgive(fleet, state.node, member, now_s)
    actions = unreachable.regain(member, now_s)
    fleet.stand(member, Standing.READY)
    member.since_s = now_s
    return actions


def on_node_left(state: State, event: ev.NodeLeft, now_s: float) -> list[Action]:
    """A guardrun ended by itself, its ranks with it."""
    fleet, member = state.fleet, _member(state, event.node)
    if fleet is None or member is None or member.standing in (Standing.LEFT, Standing.OUT):
        return []
    fleet.stand(member, Standing.OUT if event.is_unfit else Standing.LEFT)
    member.is_missed = False
    member.since_s, member.why = now_s, event.why or "its guardrun has ended"
    return lose(state, [member], now_s)


def forgive_silence(fleet: Fleet, now_s: float) -> None:
    """A supervisor that was started anew has listened to nobody yet: silence counts from now on."""
    for node in fleet.quiet:
        member = fleet.members[node]
        member.since_s, member.is_dropped = now_s, False


def _member(state: State, node: str) -> Member | None:
    return state.fleet.members.get(node) if state.fleet is not None else None


# Lost --------------------------------------------------------------------------------------------------


def due_s(state: State) -> float | None:
    """When something is to be decided about nodes."""
    fleet = state.fleet
    if fleet is None or state.phase in (Phase.NEW, Phase.ENDED):
        return None
    times = [_lost_s(state, fleet.members[node]) for node in fleet.quiet]
    if (lost_s := partition.due_s(times)) is not None:
        times = [lost_s]
    times += [state.last_s for node in fleet.quiet if _is_only_missed(state, fleet.members[node])]
    if (check_s := node_checks.due_s(state)) is not None:
        times.append(check_s)
    if (isolate_s := awaited_nodes.due_s(state)) is not None:
        times.append(isolate_s)
    if state.phase is Phase.GATHERING:
        waits_s = [state.settings.last_call_s, state.settings.join_timeout_s]
        times += [fleet.since_s + w for w in waits_s if fleet.since_s + w > state.last_s]
        times += [fleet.say_s] if fleet.say_s and not fleet.requeue_s else []
        if fleet.requeue_s:
            times.append(_answer_s(fleet))
        elif state.last_s >= fleet.since_s + state.settings.join_timeout_s:
            times.append(state.last_s)
    return min(times, default=None)


def _lost_s(state: State, member: Member) -> float:
    """When a silent node is lost, if nothing changes: neither it is heard nor does the job advance."""
    patience_s = min(DROPPED_S, state.settings.lost_s) if member.is_dropped else _patience_s(state)
    at_s = (member.dropped_s if member.is_dropped else member.since_s) + patience_s
    attempt = state.attempt
    if attempt is None or state.phase is not Phase.RUNNING or not trains(state, member):
        return at_s
    if member.node not in attempt.tied:
        return at_s  # the others' progress says nothing of its ranks, and without contact it has ended them
    # Ranks that advance together all live; only once they have stood still, it may be this node.
    still_s = min(patience_s, DROPPED_S)
    if not member.is_dropped:
        still_s = max(still_s, min(STILL * state.gaps.typical_s, STILL_MAX_S))
    return max(at_s, silence_began_s(attempt) + still_s)


def _is_only_missed(state: State, member: Member) -> bool:
    """Contact alone is lost, as what the job does by now shows, and that is still to be said."""
    attempt = state.attempt
    if attempt is None or state.phase is not Phase.RUNNING or not member.is_placed:
        return False
    if member.node not in attempt.tied:
        return False
    return unreachable.is_all(member, attempt.progress_s, max(_patience_s(state), STILL * state.gaps.typical_s))


def _patience_s(state: State) -> float:
    """As configured; longer where silences of this run's have ended by themselves after nearly as long."""
    lost_s, longest_s = state.settings.lost_s, state.fleet.longest_s if state.fleet else 0.0
    return max(lost_s, min(SILENCES * longest_s, MOST_SILENCES * lost_s))


def on_tick(state: State, now_s: float) -> list[Action]:
    """Called when anything is due."""
    fleet = state.fleet
    if fleet is None or state.phase in (Phase.NEW, Phase.ENDED):
        return []
    actions = awaited_nodes.on_tick(state, now_s) + _give_up_together(state, fleet, now_s)
    for member in [fleet.members[node] for node in fleet.quiet]:
        if _is_only_missed(state, member):
            actions += unreachable.miss(member, now_s)
    if (check_s := node_checks.due_s(state)) is not None and now_s >= check_s:
        actions += give_up_check(state, f"no answer for {now_s - state.ordered_s:.0f} s", now_s)
    if state.phase is Phase.GATHERING:
        actions += try_start(state, now_s)
    if state.phase is Phase.GATHERING:
        actions += _wait_on(state, fleet, now_s)
    if state.phase is Phase.GATHERING:
        actions += join_wait.remind(state, fleet, now_s)
    return actions


def _give_up_together(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    times = {node: _lost_s(state, fleet.members[node]) for node in fleet.quiet}
    lost_s = partition.due_s(times.values())
    if lost_s is None or now_s < lost_s:
        return []
    lost = [fleet.members[node] for node, at_s in times.items() if now_s >= at_s]
    for member in lost:
        _give_up_node(fleet, member, now_s)
    return lose(state, lost, now_s)


def _give_up_node(fleet: Fleet, member: Member, now_s: float) -> None:
    closed = "its connection was closed, and " if member.is_dropped else ""
    member.why = f"{closed}nothing has been heard of it for {now_s - member.since_s:.0f} s"
    fleet.stand(member, Standing.LOST)
    member.is_missed = False


def _wait_on(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Still too few nodes: have the scheduler give others, or end, when nobody can be hoped for any more."""
    waited_s = now_s - fleet.since_s
    reason = f"too few nodes for {waited_s:.0f} s: {missing_words(fleet)}"
    if fleet.requeue_s:
        if now_s < _answer_s(fleet):
            return []
        state.requeue = "unanswered"
        return _give_up(state, f"{reason}; no answer of the scheduler's", now_s)
    is_over = waited_s >= state.settings.join_timeout_s
    may_requeue = state.notice.may_requeue and state.settings.is_named and state.settings.requeue != "never"
    if may_requeue and state.attempt is not None and (is_over or waited_s >= state.settings.last_call_s):
        fleet.requeue_s = now_s
        state.outcome, state.exit_code, state.give_up_reason = "interrupted", 1, reason
        said = announce(f"{reason}: the job is requeued, to get others", level="warn")
        kept_out = awaited_nodes.at_end(state)
        return [said, *kept_out, requeue.requeue(state, fleet.gone, now_s + requeue.PATIENCE_S, now_s)]
    return _give_up(state, reason, now_s) if is_over else []


def _answer_s(fleet: Fleet) -> float:
    """When the scheduler's answer is not waited for any more."""
    return fleet.requeue_s + requeue.PATIENCE_S + requeue.ANSWER_S


def _give_up(state: State, reason: str, now_s: float) -> list[Action]:
    return [announce(reason, level="bad"), *finish(state, "interrupted", 1, reason, now_s)]


def on_requeued(state: State, event: ev.Requeued, now_s: float) -> list[Action]:
    """The scheduler's answer to a request for other nodes."""
    fleet = state.fleet
    if fleet is None or not fleet.requeue_s:
        return []
    requeue.note_answer(state, event)
    if event.is_done:
        return finish(state, "interrupted", 1, state.give_up_reason, now_s)
    return _give_up(state, f"{state.give_up_reason}; the job could not be requeued: {event.why}", now_s)


# The next attempt's nodes ------------------------------------------------------------------------------


def launch(state: State, now_s: float) -> list[Action]:
    """Start the next attempt; with several nodes, once those that it needs are there."""
    fleet = state.fleet
    if fleet is None:
        enter(state, Phase.STARTING)
        state.ordered_s = now_s
        return [start(state)]
    enter(state, Phase.GATHERING)
    fleet.since_s, fleet.requeue_s = now_s, 0.0
    node_checks.expect(state, fleet)
    actions = try_start(state, now_s)
    return actions + join_wait.begin(state, fleet, now_s) if state.phase is Phase.GATHERING else actions


def try_start(state: State, now_s: float) -> list[Action]:
    """While nodes are waited for: start with those that are there, if they will do."""
    fleet = state.fleet
    if fleet is None or state.phase is not Phase.GATHERING or fleet.requeue_s:
        return []
    if len(fleet.members) < fleet.plan.least:
        return []
    placed = place(fleet, now_s - fleet.since_s, state.settings.last_call_s)
    if not placed:
        return []
    if node_checks.is_wanted(state, fleet, placed):
        return node_checks.ask(state, fleet, placed, now_s)
    return _start(state, fleet, placed, now_s)


def _start(state: State, fleet: Fleet, placed: list[str], now_s: float) -> list[Action]:
    actions = _changes(fleet, placed, state.world_size) + world_size_change.say_odd_spares(fleet, placed)
    fleet.put(placed)
    state.world_size = first_ranks(fleet, placed)[-1]
    state.phase, state.ordered_s = Phase.STARTING, now_s
    return [*actions, start(state)]


def on_nodes_checked(state: State, event: ev.NodesChecked, now_s: float) -> list[Action]:
    """The nodes have been tried together: start with those that are fit."""
    fleet = state.fleet
    if fleet is None or event.check != fleet.check:
        return []
    actions = node_checks.note(state, fleet, event, now_s)
    return actions + _checked(state, fleet, now_s)


def give_up_check(state: State, why: str, now_s: float) -> list[Action]:
    """Start without the answer of a check."""
    assert state.fleet is not None
    said = announce(f"pre-flight: the nodes could not be tried together ({why}): starting all the same", level="warn")
    state.fleet.checks_left = 0
    return [said, *_checked(state, state.fleet, now_s)]


def _checked(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    if state.attempt is None and (why := node_checks.too_few(fleet)):
        return [announce(why, level="bad"), *finish(state, "interrupted", node_checks.NOT_FIT, why, now_s)]
    # Who was there before the check still is, or somebody else is waited for as long as ever.
    enter(state, Phase.GATHERING)
    return try_start(state, now_s)


def _changes(fleet: Fleet, placed: list[str], world_size: int) -> list[Action]:
    """In words, how the next attempt's nodes differ from the last one's. world_size: the last one's."""
    if not fleet.placed:
        return []
    were, are = set(fleet.placed), set(placed)
    gone = [node for node in fleet.placed if node not in are]
    new = [node for node in placed if node not in were]
    size = world_size_change.size_words(fleet, placed, world_size)
    parts = [f"without {', '.join(gone)}"] if gone else []
    parts += [f"with {', '.join(new)}"] if new else []
    parts += ["with the same nodes"] if size and not parts else []
    return [announce(f"the next attempt goes {' and '.join(parts)}{size}", level="info")] if parts else []
