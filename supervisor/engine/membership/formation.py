"""Between two attempts: nodes are waited for until the next can start, and what is said meanwhile.

membership.py says who takes part; here it is asked when something has changed, and what it answers is done: the
attempt is started, its nodes are tried together first (node_checks.py), nodes are waited for in words, or the run ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from guardrun.supervisor.engine.membership import node_checks
from guardrun.supervisor.engine.membership.membership import Membership, Options, compute_membership, wait_until_s
from guardrun.supervisor.engine.model import events as ev
from guardrun.supervisor.engine.model.actions import Action
from guardrun.supervisor.engine.model.transitions import Phase
from guardrun.supervisor.engine.recovery import eviction, requeue
from guardrun.supervisor.engine.recovery.decide import announce
from guardrun.supervisor.engine.recovery.launcher_orders import start
from guardrun.supervisor.engine.recovery.run_summary import finish
from guardrun.supervisor.engine.state.job_nodes import MAX_NAMED, Fleet, Member, first_ranks
from guardrun.supervisor.engine.state.state import State, enter

FIRST_S = 10.0
"""Nodes that are there within that need no words."""
AGAIN_S = 60.0
RARELY_S = 300.0


def next_membership(state: State, fleet: Fleet, now_s: float) -> Membership:
    """Who takes part in the next attempt, as it stands."""
    return compute_membership(now_s, fleet.members, _options(state, fleet))


def _options(state: State, fleet: Fleet) -> Options:
    return Options(
        plan=fleet.plan,
        before=fleet.placed,
        since_s=fleet.since_s,
        last_call_s=state.settings.last_call_s,
        join_timeout_s=state.settings.join_timeout_s,
    )


# The next attempt --------------------------------------------------------------------------------------


def launch(state: State, now_s: float) -> list[Action]:
    """Start the next attempt; with several nodes, once those that it needs are there."""
    fleet = state.fleet
    if fleet is None:
        return [start(state, now_s)]
    enter(state, Phase.GATHERING)
    fleet.since_s, fleet.requeue_s = now_s, 0.0
    node_checks.expect(state, fleet)
    actions = try_start(state, now_s)
    return actions + _begin_waiting(state, fleet, now_s) if state.phase is Phase.GATHERING else actions


def try_start(state: State, now_s: float) -> list[Action]:
    """While nodes are waited for: start with those that are there, if they will do."""
    fleet = state.fleet
    if fleet is None or state.phase is not Phase.GATHERING or fleet.requeue_s:
        return []
    if len(fleet.members) < fleet.plan.least:
        return []  # most of thousands of nodes have yet to join
    found = next_membership(state, fleet, now_s)
    if not found.members:
        return []
    if node_checks.is_wanted(state, fleet, found.members):
        return node_checks.ask(state, fleet, found.ready, now_s)
    return _start(state, fleet, found, now_s)


def _start(state: State, fleet: Fleet, found: Membership, now_s: float) -> list[Action]:
    actions = _changes(fleet, found.members, state.world_size)
    if not fleet.placed:  # by now it is known who trains, and who waits
        waiting = [fleet.members[node] for node in found.spares]
        actions += [action for member in waiting for action in odd_size(fleet, found.members, member)]
    fleet.put(found.members)
    state.world_size = first_ranks(fleet, found.members)[-1]
    return [*actions, start(state, now_s)]


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
    is_hopeless = state.attempt is None and not next_membership(state, fleet, now_s).may_suffice
    if is_hopeless and (why := node_checks.too_few(fleet)):
        return [announce(why, level="bad"), *finish(state, "interrupted", node_checks.NOT_FIT, why, now_s)]
    # Who was there before the check still is, or somebody else is waited for as long as ever.
    enter(state, Phase.GATHERING)
    return try_start(state, now_s)


# Waiting -----------------------------------------------------------------------------------------------


def due_s(state: State, fleet: Fleet) -> float:
    """When something is to be decided, or said, while nodes are waited for."""
    if fleet.requeue_s:
        return _answer_s(fleet)
    until_s = max(wait_until_s(state.last_s, _options(state, fleet)), state.last_s)
    return min(until_s, fleet.say_s) if fleet.say_s else until_s


def on_tick(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Start with those that are there by now; else wait on, and say so, or give up."""
    actions = try_start(state, now_s)
    if state.phase is Phase.GATHERING:
        actions += _wait_on(state, fleet, now_s)
    if state.phase is Phase.GATHERING:
        actions += _remind(state, fleet, now_s)
    return actions


def _begin_waiting(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Before the first attempt nodes are still being started, later they are missed."""
    if state.attempt is None:
        fleet.say_s = now_s + FIRST_S
        return []
    fleet.say_s = now_s + AGAIN_S
    return [announce(f"waiting for nodes: {missing_words(fleet, next_membership(state, fleet, now_s))}", level="warn")]


def _remind(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Say for whom the run waits, where that is due: at first after some seconds, then rarely."""
    if not fleet.say_s or now_s < fleet.say_s or fleet.requeue_s:
        return []
    again_s = fleet.since_s + AGAIN_S
    fleet.say_s = again_s if now_s < again_s else now_s + RARELY_S
    waited_s = now_s - fleet.since_s
    there = present_words(fleet, next_membership(state, fleet, now_s))
    text = f"waiting for nodes: {there}; {state.settings.join_timeout_s - waited_s:.0f} s at most"
    if state.attempt is None:
        text += ". They find this one by the folder of runs, which all must share, or by --guard-join"
    return [announce(text, level="warn")]


def _wait_on(state: State, fleet: Fleet, now_s: float) -> list[Action]:
    """Still too few nodes: have the scheduler give others, or end, when nobody can be hoped for any more."""
    waited_s = now_s - fleet.since_s
    found = next_membership(state, fleet, now_s)
    reason = f"too few nodes for {waited_s:.0f} s: {missing_words(fleet, found)}"
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
        kept_out = eviction.at_end(state)
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


# Words -------------------------------------------------------------------------------------------------


def present_words(fleet: Fleet, found: Membership) -> str:
    """Who is there, of those that are to train, in words."""
    are_there = set(found.ready)
    ready = [node for node in fleet.members if node in are_there]
    more = f" and {len(ready) - MAX_NAMED} more" if len(ready) > MAX_NAMED else ""
    plan = fleet.plan
    wanted = str(plan.most) if plan.least == plan.most else f"{plan.least} to {plan.most}"
    names = f" ({', '.join(ready[:MAX_NAMED])}{more})" if ready else ""
    return f"{len(ready)} of {wanted} are there{names}{_left_out_words(found)}"


def missing_words(fleet: Fleet, found: Membership) -> str:
    """Who is not there, in words: for the one line that says why a run waits or ends."""
    wanted = str(fleet.plan.least) if fleet.plan.least == fleet.plan.most else f"at least {fleet.plan.least}"
    return f"{len(found.ready)} of {wanted} nodes{_left_out_words(found)}"


def _left_out_words(found: Membership) -> str:
    gone = [f"{node} ({why})" for node, why in found.left_out.items()]
    return f"; not with them: {', '.join(gone[:MAX_NAMED])}" if gone else ""


def _changes(fleet: Fleet, placed: list[str], world_size: int) -> list[Action]:
    """In words, how the next attempt's nodes differ from the last one's. world_size: the last one's."""
    if not fleet.placed:
        return []
    were, are = set(fleet.placed), set(placed)
    gone = [node for node in fleet.placed if node not in are]
    new = [node for node in placed if node not in were]
    size = _size_words(fleet, placed, world_size)
    parts = [f"without {', '.join(gone)}"] if gone else []
    parts += [f"with {', '.join(new)}"] if new else []
    parts += ["with the same nodes"] if size and not parts else []
    return [announce(f"the next attempt goes {' and '.join(parts)}{size}", level="info")] if parts else []


def _size_words(fleet: Fleet, placed: list[str], world_size: int) -> str:
    """` (3 ranks instead of 4)`, ` (2 nodes instead of 3)`; empty: all as before. world_size: of the attempt before."""
    now, before, ranks = len(placed), len(fleet.placed), first_ranks(fleet, placed)[-1]
    if ranks * before == world_size * now:  # as many a node as ever
        return f" ({now} nodes instead of {before})" if now != before else ""
    if now == before:
        return f" ({_count_ranks(ranks)} instead of {world_size})"
    return f" ({now} nodes with {_count_ranks(ranks)} instead of {before} with {world_size})"


def odd_size(fleet: Fleet, placed: Sequence[str], member: Member) -> list[Action]:
    """A node waits whose number of ranks none of those has that train: said, never taken for granted.

    placed: who trains; empty: not known yet.
    """
    sizes = sorted({fleet.members[node].ranks for node in placed})
    if not sizes or member.ranks in sizes or member.node in placed:
        return []
    theirs = " or ".join(map(str, sizes))
    text = f"{member.node} waits with {_count_ranks(member.ranks)}, where those that train have {theirs}"
    return [announce(f"{text}: it takes a place only where no other node can", level="warn")]


def _count_ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"
